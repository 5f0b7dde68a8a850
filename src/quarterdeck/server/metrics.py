"""Numbers for Prometheus: calls, time, waiting work. No user data."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one core."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._found: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        self._calls = Counter(
            "quarterdeck_calls",
            "Tool calls by result.",
            ("surface", "tool", "result"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "quarterdeck_call_seconds",
            "Time of a tool call.",
            ("surface",),
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30),
            registry=self._registry,
        )
        self._events = Counter(
            "quarterdeck_events", "Committed events by kind.", ("kind",), registry=self._registry
        )
        self._adopted = Counter(
            "quarterdeck_sessions_adopted",
            "Older clients' sessions that this process took over from another, or from before its start.",
            registry=self._registry,
        )
        self._semantic = Gauge(
            "quarterdeck_search_semantic",
            "1 while search is semantic, 0 on the fallback.",
            registry=self._registry,
        )

        self._waiting = Gauge(
            "quarterdeck_waiting", "Long polls that wait for an event.", registry=self._registry
        )
        self._streams = Gauge(
            "quarterdeck_streams",
            "Open streams: of events, of subscriptions, and of older clients' sessions.",
            registry=self._registry,
        )

    def observe(self, surface: str, tool: str, result: str, seconds: float) -> None:
        # Finding a counter by its labels costs more than counting.
        key = (surface, tool, result)
        if (found := self._found.get(key)) is None:
            found = self._found[key] = (self._calls.labels(*key), self._seconds.labels(surface))
        found[0].inc()
        found[1].observe(seconds)

    def event(self, kind: str) -> None:
        self._events.labels(kind).inc()

    def adopted(self) -> None:
        self._adopted.inc()

    def render(self, *, semantic: bool, waiting: int, streams: int) -> bytes:
        self._semantic.set(1 if semantic else 0)
        self._waiting.set(waiting)
        self._streams.set(streams)
        return generate_latest(self._registry)
