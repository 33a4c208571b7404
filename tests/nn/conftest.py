import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The inputs here are tiny: beside another busy process a second thread costs far more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
