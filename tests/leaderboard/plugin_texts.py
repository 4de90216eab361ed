"""Plugin files that the tests write: good ones, broken ones and cheating ones."""

from __future__ import annotations

ATTACK_HEAD = """
import gc, os, signal, time
from typing import ClassVar
import torch
from leakboard.attacks.base import *
"""

#: scores every candidate with the same number
CONSTANT = (
    ATTACK_HEAD
    + """
class Constant(MembershipAttack):
    '''Scores every candidate alike.'''
    name: ClassVar[str] = "constant"
    def infer(self, knowledge, task):
        scores = torch.full((len(task.candidates),), VALUE)
        return MembershipAnswer(scores, scores > 0)
"""
)

#: sends gradients that are scaled down
SCALED = """
from typing import ClassVar
from leakboard.defenses.base import Defense

class Scaled(Defense):
    '''Sends a part of the gradient.'''
    name: ClassVar[str] = "scaled"
    citation: ClassVar[str] = "LeakBoard's tests"
    claim: ClassVar[str] = "Nothing."
    def protect(self, me, gradient):
        return {name: value * FACTOR for name, value in gradient.items()}
"""

#: one raises in its first round, another kills its process, others leave, recurse or send nonsense
BROKEN_DEFENSE = """
import os
from typing import ClassVar
from leakboard.defenses.base import Defense

class Broken(Defense):
    '''Fails in training.'''
    name: ClassVar[str] = "broken"
    def protect(self, me, gradient):
        raise RuntimeError("the key has expired")

class Closing(Defense):
    '''Takes the log away from its own training.'''
    name: ClassVar[str] = "closing"
    def protect(self, me, gradient):
        os.close(1)
        return gradient

class Leaving(Defense):
    '''Leaves as if all were well.'''
    name: ClassVar[str] = "leaving"
    def protect(self, me, gradient):
        raise SystemExit(0)

class Recursing(Defense):
    '''Never comes back from itself.'''
    name: ClassVar[str] = "recursing"
    def protect(self, me, gradient):
        return self.protect(me, gradient)

class Misshapen(Defense):
    '''Sends something else than a gradient.'''
    name: ClassVar[str] = "misshapen"
    def protect(self, me, gradient):
        return {name: value.flatten()[:-1] for name, value in gradient.items()}

class Dying(Defense):
    '''Ends its process in training.'''
    name: ClassVar[str] = "dying"
    def protect(self, me, gradient):
        os._exit(5)
"""

#: sends no numbers, talks and forks, and still gives a model of a kind
UNRULY_DEFENSE = """
import os
from typing import ClassVar
from leakboard.defenses.base import Defense

class Unruly(Defense):
    '''Does everything but fail.'''
    name: ClassVar[str] = "unruly"
    def protect(self, me, gradient):
        if me.name == "client:0" and me.context.round == 0 and me.context.kind == "train":
            print("noise " * 100_000, flush=True)
            if os.fork() == 0:
                os._exit(0)
        return {name: value * float("nan") for name, value in gradient.items()}
"""

#: never ends its training
ENDLESS = """
import time
from typing import ClassVar
from leakboard.defenses.base import Defense

class Endless(Defense):
    '''Never finishes.'''
    name: ClassVar[str] = "endless"
    def protect(self, me, gradient):
        while True:
            time.sleep(0.1)
"""

#: marks that it has been reached, and goes on when somebody makes the other file
GATE = (
    ATTACK_HEAD
    + """
class Gate(MembershipAttack):
    '''Waits until it is opened.'''
    name: ClassVar[str] = "gate"
    def infer(self, knowledge, task):
        open("REACHED", "a").close()
        while not os.path.exists("OPEN"):
            time.sleep(0.01)
        scores = torch.zeros(len(task.candidates))
        return MembershipAnswer(scores, scores > 0)
"""
)

#: name of a faulty membership attack -> what its `infer` does; `good` is a right answer
FAULTY_MEMBERSHIP = {
    "raises": "raise ValueError('no such neuron')",
    "nan-scores": "return MembershipAnswer(torch.full((n,), float('nan')), good.decisions)",
    "wrong-shape": "return MembershipAnswer(torch.zeros(n, 2), good.decisions)",
    "too-few": "return MembershipAnswer(torch.zeros(n - 1), torch.zeros(n - 1, dtype=torch.bool))",
    "list-scores": "return MembershipAnswer([0.0] * n, [False] * n)",
    "nan-diagnostic": "return MembershipAnswer(good.scores, good.decisions, diagnostics={'fit': float('nan')})",
    "nothing": "return None",
    "wrong-kind": "return ReconstructionAnswer((torch.zeros(1, 1, 32, 32),) * 2)",
    "huge-scores": "return MembershipAnswer(torch.full((n,), 1e200, dtype=torch.double), good.decisions)",
    "huge-flag": "return MembershipAnswer(good.scores, good.decisions, flags=('x' * 60_000_000,))",
    "planted-flag": "return MembershipAnswer(good.scores, good.decisions, flags=(Planted(),))",
    "planted-bytes": """
        import pickle
        from multiprocessing.connection import Connection
        for pipe in [thing for thing in gc.get_objects() if isinstance(thing, Connection) and thing.writable]:
            pipe.send_bytes(pickle.dumps(("ok", Planted(), None)))
        os._exit(0)""",
    "recurses": "return self.infer(knowledge, task)",
    "closes-output": "import sys; sys.stdout.close(); os.close(1); os.close(2); return good",
    "forks": """
        if os.fork() == 0:
            beat(HEARTBEAT + '-fork')
        while not os.path.exists(HEARTBEAT + '-fork'):
            time.sleep(0.01)
        return good""",
    "deletes-run": "os.remove(RUN_FOLDER + '/run.json'); return good",
    "removes-run": "import shutil; shutil.rmtree(RUN_FOLDER, ignore_errors=True); return good",
    "chatty": "print('noise ' * 500_000); return good",
    "exits": "os._exit(0)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "leaves": "raise SystemExit(0)",
    "unsupported": "raise Unsupported('it needs two models')",
    "opens-run": "open(RUN_FOLDER + '/run.json').read(); return good",
    "reads-data": "from leakboard.datasets.digits import Digits; Digits().read(); return good",
    "sleeps": "beat(HEARTBEAT)",
}
#: name of a faulty reconstruction attack -> what its `reconstruct` does
FAULTY_RECONSTRUCTION = {
    "wrong-number": "return ReconstructionAnswer((torch.zeros(1, 1, 32, 32),))",
    "wrong-images": "return ReconstructionAnswer((torch.zeros(1, 3, 8, 8),) * task.probes)",
    "nan-images": "return ReconstructionAnswer((torch.full((1, 1, 32, 32), float('nan')),) * task.probes)",
    "one-nan": "return ReconstructionAnswer((torch.zeros(1, 1, 32, 32), torch.full((1, 1, 32, 32), float('inf'))))",
}


#: a process that does this holds the lock of the file as long as it lives
BEAT = """
def beat(path):
    import fcntl
    with open(path + '.new', 'a') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(path + '.new', path)
        while True:
            time.sleep(0.05)
"""

#: ends the process that is to score it
KILLS_WORKER = """
class KillsWorker(MembershipAttack):
    '''Is faulty.'''
    name: ClassVar[str] = "kills-worker"
    def budget(self):
        os._exit(3)
    def infer(self, knowledge, task):
        raise AssertionError("never reached")
"""


#: whoever unpickles it writes a file
PLANTED = """
class Planted:
    def __reduce__(self):
        return exec, (f"open({HEARTBEAT + '-planted'!r}, 'a').write('executed')",)
"""


def faulty_attacks(run_folder: str, heartbeat: str) -> str:
    """A plugin file with all the faulty attacks."""
    text = ATTACK_HEAD + BEAT + KILLS_WORKER + f"RUN_FOLDER, HEARTBEAT = {run_folder!r}, {heartbeat!r}\n" + PLANTED
    for number, (name, body) in enumerate(FAULTY_MEMBERSHIP.items()):
        text += f"""
class Member{number}(MembershipAttack):
    '''Is faulty.'''
    name: ClassVar[str] = "{name}"
    def infer(self, knowledge, task):
        n = len(task.candidates)
        good = MembershipAnswer(torch.zeros(n), torch.zeros(n, dtype=torch.bool))
        {body.strip()}
"""
    for number, (name, body) in enumerate(FAULTY_RECONSTRUCTION.items()):
        text += f"""
class Image{number}(ReconstructionAttack):
    '''Is faulty.'''
    name: ClassVar[str] = "{name}"
    def reconstruct(self, knowledge, task):
        {body}
"""
    return text


#: returns every image-like thing that it finds in its process's memory
SPY = (
    ATTACK_HEAD
    + """
import numpy, sys

def found_images():
    things = list(gc.get_objects())
    for thing in list(things):
        if isinstance(thing, (dict, list, tuple)):
            things += gc.get_referents(thing)
    kept = {}
    for thing in things:
        if isinstance(thing, numpy.ndarray) and thing.dtype.kind in "fu":
            try:
                thing = torch.from_numpy(numpy.ascontiguousarray(thing))
            except TypeError:
                continue
        if type(thing) is torch.Tensor and thing.ndim >= 2 and tuple(thing.shape[-2:]) == (32, 32):
            thing = thing.float() / (255 if thing.dtype == torch.uint8 else 1)
            kept[id(thing)] = thing.reshape(-1, 1, 32, 32)
    return torch.cat(list(kept.values())).unique(dim=0)

class Spy(ReconstructionAttack):
    '''Looks around in its process.'''
    name: ClassVar[str] = "spy"
    def reconstruct(self, knowledge, task):
        from leakboard.leaderboard.planning.jobs import Job
        from leakboard.datasets.base import ImagePool
        from leakboard.federation.rounds import Federation
        held = gc.get_objects()
        counts = {c.__name__: float(sum(isinstance(o, c) for o in held)) for c in (Job, ImagePool, Federation)}
        del held
        numpy.save(__file__.replace("spy.py", "found.npy"), found_images().numpy())
        return ReconstructionAnswer(tuple(torch.zeros(n, 1, 32, 32) for n in task.sizes), diagnostics=counts)
"""
)
