"""What the work came to, as plots and tables."""

from typing import Final

from quarterdeck.core import insight
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.states import STATUSES
from quarterdeck.server.web import plots
from quarterdeck.server.web.routing import Answer, Request, route
from quarterdeck.server.web.show import lasting, money, number, page

_SPANS: Final = ("7", "30", "90", "365")


@route("GET", "/insight")
async def insights(request: Request) -> Answer:
    span = request.asked("days") or "30"
    if span not in _SPANS:
        raise Invalid("days must be 7, 30, 90 or 365", field="days")
    found = await insight.over(request.core, request.caller, int(span))
    order: dict[str, int] = {status: index for index, status in enumerate(STATUSES)}
    stays = sorted(found.stays, key=lambda one: order.get(one.status, 99))
    drawn = {
        "cost": plots.by_day(found.days, found.cost, "Cost by day and agent", money),
        "tokens": plots.by_day(found.days, found.tokens, "Tokens by day and agent", number),
        "throughput": plots.by_day(
            found.days,
            found.throughput,
            "Tasks created, completed and failed by day",
            number,
            stacked=False,
        ),
        "stays": plots.by_name(
            [(one.status.replace("_", " "), one.mean_us) for one in stays],
            "Mean time in each status",
            lambda us: lasting(int(us)),
        ),
        "failures": plots.by_name(
            [(why, float(count)) for why, count in found.failures], "Jobs that failed by reason", number
        ),
    }
    return page(request, "insight.html", found=found, drawn=drawn, span=span, spans=_SPANS, stays=stays)
