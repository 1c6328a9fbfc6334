"""The public test kit: run pipelines in this process, with crashes and a clock moved by hand."""
