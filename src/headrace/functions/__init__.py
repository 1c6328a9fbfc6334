"""The functions that SQL has beyond those of DataFusion, over whole Arrow arrays."""
