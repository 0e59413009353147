"""A recipe's cassette: every episode is played inside it, so that external tools are recorded or replayed in
training, evaluation, roll-outs and `steprl replay` alike."""

from __future__ import annotations

from steprl.tools.cassette import Cassette
from steprl.types import Session, Task, Workflow


class Taped:
    """A workflow whose episodes run inside a cassette."""

    def __init__(self, workflow: Workflow, cassette: Cassette) -> None:
        self._workflow = workflow
        self._cassette = cassette

    async def run(self, task: Task, session: Session) -> None:
        """See `Workflow`."""
        with self._cassette:
            await self._workflow.run(task, session)
