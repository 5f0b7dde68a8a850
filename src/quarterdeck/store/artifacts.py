"""What jobs leave: whole files with their digest, reached through the job."""

from collections.abc import Iterable

from sqlalchemy import LargeBinary, case, delete, func, insert, select
from sqlalchemy.sql import ColumnElement

from quarterdeck.domain.records import JobArtifact, as_dict
from quarterdeck.store.schema import artifacts, jobs
from quarterdeck.store.tx import Tx, record, within


def _of(tx: Tx, job_id: str) -> ColumnElement[bool]:
    own = select(jobs.c.id).where(jobs.c.id == job_id, *within(jobs, tx.shape))
    return artifacts.c.job_id.in_(own)


def put(tx: Tx, files: Iterable[JobArtifact]) -> None:
    """Keep files of a job that was locked in this transaction; one of the same name is replaced."""
    for file in files:
        tx.write(
            delete(artifacts).where(artifacts.c.job_id == file.job_id, artifacts.c.name == file.name), {}
        )
        tx.write(insert(artifacts), as_dict(file))


def get(tx: Tx, job_id: str, name: str) -> JobArtifact | None:
    """A file of the caller's job."""
    row = tx.one(select(artifacts).where(_of(tx, job_id), artifacts.c.name == name))
    return None if row is None else record(JobArtifact, row)


def tail(tx: Tx, job_id: str, name: str, count: int) -> tuple[bytes, int] | None:
    """The last bytes of a file of the caller's job, and the size of the whole."""
    start = case((artifacts.c.size > count, artifacts.c.size - count + 1), else_=1)
    end = func.substr(artifacts.c.content, start, type_=LargeBinary)
    row = tx.one(select(end.label("end"), artifacts.c.size).where(_of(tx, job_id), artifacts.c.name == name))
    return None if row is None else (bytes(row.end), int(row.size))


def names_of(tx: Tx, job_id: str) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of the files of the caller's job, by name."""
    columns = (artifacts.c.name, artifacts.c.size, artifacts.c.sha256)
    rows = tx.all(select(*columns).where(_of(tx, job_id)).order_by(artifacts.c.name))
    return {row.name: (row.size, row.sha256) for row in rows}
