"""The question halves of our own goals: they are part of the key of every answer, so nothing else stands here."""
