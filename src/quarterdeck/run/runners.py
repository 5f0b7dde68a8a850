"""Who runs which kind of job. Each kind's runner is registered here, under the kind's name."""

from quarterdeck.core import prompts
from quarterdeck.run import prompts as prompting
from quarterdeck.run.worker import Runner

RUNNERS: dict[str, Runner] = {prompts.KIND: prompting.carry_out}
