"""What differs between versions of torch, and which versions are told of."""

import warnings

import pytest
import torch

from precast._torch_compat import arguments_for_shape, aten_operators, warn_if_untested


@pytest.mark.parametrize("version", ["2.10.1", "2.99.0a0+git1234", "3.0.0"])
def test_a_version_that_no_test_has_seen_is_told_of(version):
    with pytest.warns(UserWarning, match=f"tested with torch 2.11 to .*; this is torch {version[:4]}"):
        warn_if_untested(version)


@pytest.mark.parametrize("version", ["2.11.0+cu130", "2.12.1", "2.13.0+cpu"])
def test_of_tested_versions_nothing_is_said(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untested(version)


def test_operators_that_this_torch_does_not_have_are_left_out():
    found = aten_operators({"_foreach_add": 1, "_foreach_that_no_version_has": 2})
    assert found == [(torch.ops.aten._foreach_add, 1)]


def test_dimensions_of_a_norm_are_counted_from_the_front():
    norm, x = torch.ops.aten.linalg_vector_norm.default, torch.ones(2, 3, 1)
    assert arguments_for_shape(norm, (x, 2, [-1, 0], True)) == (x, 2, [2, 0], True)
    assert arguments_for_shape(norm, (x, 2, [-4])) == (x, 2, [-4])
    assert arguments_for_shape(norm, (x,)) == (x,)
