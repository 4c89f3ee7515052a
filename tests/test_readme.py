"""The README's examples run, in order, and print what it says they print."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_every_python_block_runs_and_prints_the_text_block_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text(encoding="utf-8")
    code_and_output = r"(<!-- not run: .*? -->\n)?```python\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    blocks = re.findall(code_and_output, text, re.S)
    assert len(blocks) > 6
    names: dict[str, object] = {}
    for not_run, code, printed in blocks:
        if not_run:
            continue
        out = StringIO()
        with redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), names)
        if printed:
            assert out.getvalue().endswith(printed)  # gepa prints its progress before
