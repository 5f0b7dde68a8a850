"""Alembic's entry: migrates on the connection it is given, inside that connection's transaction."""

from alembic import context

from quarterdeck.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
