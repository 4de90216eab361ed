"""LeakBoard: what does a federated-learning defense really leak?"""
