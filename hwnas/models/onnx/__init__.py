"""ONNX files: the writer, and the importer of models of other programs.

The constants are here because runtimes read the files without the package ``onnx``.
"""

BATCH = "batch"  #: dimension of the input and outputs that may have any size
THREADS = "threads"  #: metadata key: number of threads, where the network chose it
OPERATORS = "operators"  #: metadata key: names of all operators, one per line
