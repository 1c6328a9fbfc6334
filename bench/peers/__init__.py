"""PyFlink, Bytewax and Pathway: the Nexmark queries beside Headrace, each in an environment of its own.

`python -m bench.peers install` makes the environments below `build/peers`. There is one script for each peer,
which runs with the peer's interpreter and knows nothing of Headrace:

    build/peers/pyflink/bin/python bench/peers/run_pyflink.py q5 --folder FOLDER --count EVENTS [--rows FILE]

What is compared: the same events from files, 2 cores, the rows thrown away as cheaply as the peer can. The
queries are written as the peer's own guide would write them. `queries.json` has those of each whose rows were
found equal to DataFusion's over 200,000 events.

What is not: no peer writes checkpoints or commits what it gives out, as Headrace and Structured Streaming do.
Start-up does not count. What a peer cannot read is converted once, beside the folder of the events, and that
does not count either: PyFlink reads flat Parquet, Pathway reads CSV, Bytewax the same files as all others.
Results of windows are final in PyFlink and Bytewax; in Pathway they are updated, since nothing can be late.

What a peer has no words for is not in `queries.json`, nor what takes it too long to be measured: sessions
(q11) in Pathway, and hop60 in Pathway and Bytewax.

dora is installed with them; what it runs is in `bench/dataflow`.
"""
