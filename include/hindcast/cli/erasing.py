"""The command that erases what is kept of certain keys."""

from __future__ import annotations

import base64
import binascii
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hindcast import Hindcast
from hindcast.cli.confirming import confirm
from hindcast.cli.input_file import content_of
from hindcast.cli.options import RECORDS, DryRunOption, FormatOption, YesOption
from hindcast.cli.output import Format, Output
from hindcast.errors import BadInputError

KeysOption = Annotated[
    Path, typer.Option("--keys", "-k", help="a file of keys, one a line, as the topic has them; - for stdin")
]
Base64Option = Annotated[bool, typer.Option("--base64", help="the keys are in base64")]

app = typer.Typer()


@app.command(rich_help_panel=RECORDS)
def erase(
    topic: Annotated[str, typer.Argument(help="the topic's name")],
    keys: KeysOption,
    in_base64: Base64Option = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Erase what is kept of a topic's records with these keys: in its archive, in late rows, in dead letters.

    The keys come from a file, so that no list of processes and no history of a shell shows them. The topic
    itself drops its records by its own retention, and the tables of pipelines are yours.
    """
    from hindcast.archive.erase_keys import erase_keys

    hindcast = Hindcast()
    wanted = read_keys(keys, in_base64=in_base64)
    form = Output(output)
    if dry_run:
        form.row({**asdict(erase_keys(hindcast, topic, wanted, dry_run=True)), "dry_run": True})
        return
    question = f"Erase what is kept of {len(wanted)} keys of {topic}, for ever?"
    confirm(f"hindcast erase {topic}", question, yes=yes)
    done = erase_keys(hindcast, topic, wanted)
    form.row(asdict(done))
    if done.not_archived:
        print(
            f"The topic holds {done.not_archived} offsets that are not archived yet. Once they are "
            f"(`hindcast archive run {topic}`), run this again.",
            file=sys.stderr,
        )


def read_keys(file: Path, *, in_base64: bool) -> list[bytes]:
    """The keys of a file, each once and in order. Empty lines are left out.

    :raises BadInputError: if it cannot be read, has no key, or a line is not base64; the message names no key
    """
    found: dict[bytes, None] = {}
    for number, line in enumerate(content_of(file).splitlines(), 1):
        if not line:
            continue
        key = line
        if in_base64:
            key = _decoded(line, number)
        found[key] = None
    if not found:
        raise BadInputError(problem=f"{file} has no key", cure="Write one a line.")
    return list(found)


def _decoded(line: bytes, number: int) -> bytes:
    try:
        return base64.b64decode(line, validate=True)
    except binascii.Error as error:
        problem = f"Line {number} is not base64"
        raise BadInputError(problem=problem, cure="Leave --base64 out if the keys are text.") from error
