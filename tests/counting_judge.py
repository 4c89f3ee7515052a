"""A metric that counts how often it is asked. It imports nothing, so that its fingerprint is made quickly."""


class Judge:
    """Two of these are the same metric, as in two processes: what is counted is no state that lasts."""

    def __init__(self, info=None):
        self.info = info or {}
        self._asked = []

    def __getstate__(self):
        return {"info": self.info}

    def __call__(self, input, output, expected=None):
        self._asked.append(output)
        return len(output) / 10, {"feedback": f"It said {output}.", "scores": {"length": 0.5}, **self.info}

    @property
    def asked(self):
        return len(self._asked)


def judging(llm):
    """A metric that asks a model."""

    def score(input, output, expected=None):
        return float(llm("Right?", input=output) == "PASS"), {"feedback": "Judged."}

    return score
