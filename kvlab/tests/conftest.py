"""Hypothesis profile, and what every test can ask for."""

import os

import pytest
from hypothesis import HealthCheck, settings

import kvlab
from kvlab.backends import reference_backend

# An interpreted commit takes 50 ms and more, whatever its size: a deadline would say nothing about the code.
settings.register_profile(
    "kvlab",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvlab")


def pytest_report_header():
    return f"kvlab backend: {kvlab.backend()} ({kvlab.describe_backend()})"


@pytest.fixture(params=["kernel", "reference"])
def path(request):
    """Runs a test twice: through the Triton kernels, and through the plain torch path."""
    if request.param == "kernel":
        if kvlab.backend() == "reference":
            pytest.skip("Triton is not to be had here")
        yield request.param
    else:
        with reference_backend():
            yield request.param
