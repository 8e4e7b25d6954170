"""A queue whose calls go in one after the other."""

from admission.before_gate import PATIENT_ADMISSION, call

from forebay.admission.queue import Queue, Waiting
from forebay.domain import Value
from forebay.policy import Admission


class Line:
    """A queue whose calls go in one after the other, each when the test says so."""

    def __init__(self, admission: Admission = PATIENT_ADMISSION, step_s: float = 0.05) -> None:
        self.queue = Queue(admission)
        self.now_s = 100.0
        self.step_s = step_s
        self.served: list[Waiting] = []

    def push(
        self,
        tenant: str = "a",
        tokens: int = 100,
        value: Value = "medium",
        *,
        output: int = 0,
        long: bool = False,
        deadline_s: float = 1e6,
    ) -> Waiting:
        rule = self.queue.admission.classes[value]
        waiting = Waiting(call(tenant, tokens, output, value, deadline_s), value, long, rule, self.now_s)
        self.queue.push(waiting)
        return waiting

    def serve(self, count: int = 1) -> list[Waiting]:
        """Let so many calls in, as if there were room for one at a time."""
        served = []
        for _ in range(count):
            heads = self.queue.heads()
            if not heads:
                break
            self.let_in(heads[0])
            served.append(heads[0])
        return served

    def let_in(self, waiting: Waiting) -> None:
        self.queue.remove(waiting)
        self.queue.charge(waiting.call, waiting.value, waiting.long, self.now_s)
        self.now_s += self.step_s
        self.served.append(waiting)

    def tokens(self, **wanted: object) -> int:
        """Sum up the tokens that went in, of a tenant or a class."""
        return sum(
            one.call.prompt_tokens
            for one in self.served
            if wanted.get("tenant", one.call.tenant.name) == one.call.tenant.name
            and wanted.get("value", one.value) == one.value
            and wanted.get("long", one.long) == one.long
        )
