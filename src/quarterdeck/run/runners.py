"""Who runs which kind of job. Each kind's runner is registered here, under the kind's name."""

from quarterdeck.core.prompts import KIND as PROMPT
from quarterdeck.core.relay import KIND as RELAY
from quarterdeck.run import prompts, relay
from quarterdeck.run.auto import run_auto
from quarterdeck.run.worker import Runner

RUNNERS: dict[str, Runner] = {RELAY: relay.perform, "auto": run_auto, PROMPT: prompts.carry_out}
