"""noeira: deep learning in Python on Mojo kernels run by Modular MAX."""

__version__ = "0.1.0"
