"""Notebooks that are executed, each cell after the other, as Jupyter would."""

import textwrap

import nbformat
from nbclient import NotebookClient


def executed(folder, *cells):
    """Execute cells, and return them with their outputs."""
    code = [nbformat.v4.new_code_cell(textwrap.dedent(cell).strip()) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=code)
    NotebookClient(
        notebook, kernel_name="python3", timeout=300, resources={"metadata": {"path": str(folder)}}
    ).execute()
    return notebook


def text_of(cell):
    """What a cell has printed, and the text form of what it has displayed."""
    made = (
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in cell.outputs
    )
    return "".join(made)


def html_of(cell):
    """The HTML that a cell shows when it is done."""
    data = (output.get("data", {}) for output in cell.outputs)
    return "".join(each["text/html"] for each in data if "text/html" in each)
