"""Each broken commit is broken in its own way, a right commit of the same arguments is right, and only the right
diagnosis counts."""

import numpy as np
import pytest
import torch

import kvlab
from kvlab import clinic
from kvlab.backends import backend
from kvlab.clinic.diagnosis import ANSWERS
from kvlab.debug import who

NUMBERS = range(1, 9)
FAULTS = {  # kinds of wrong bytes, and the fields they are in
    1: ({"missing", "unexpected", "wrong"}, {"k", "v"}),
    2: ({"unexpected", "wrong"}, {"v"}),
    3: ({"unexpected"}, {"k", "v"}),
    4: ({"missing"}, {"k_scale", "v_scale"}),
    5: ({"missing", "unexpected"}, {"k_scale", "v_scale"}),
    6: ({"missing", "unexpected", "wrong"}, {"k", "v"}),
    8: ({"unexpected"}, {"k", "v"}),
}
needs_triton = pytest.mark.skipif(backend() == "reference", reason="the broken commits are Triton kernels")


def verdict(p, call):
    return kvlab.watch(p.pool, call).expect(p.loc, p.commit_lens, layer=p.layer, k=p.k, v=p.v)


@needs_triton
@pytest.mark.parametrize("number", FAULTS)
def test_each_case_is_wrong_in_its_own_way(number):
    p = clinic.patient(number)
    found = verdict(p, p.run)
    kinds = {kind for kind in ("missing", "unexpected", "wrong") if getattr(found, kind)}
    fields = {r.field for kind in kinds for r in getattr(found, kind) if hasattr(r, "field")}
    assert (kinds, fields) == FAULTS[number], found
    assert p.report in str(p) and f"Case {number}." in str(p)


@needs_triton
@pytest.mark.parametrize("number", FAULTS)
def test_kvlabs_own_commit_of_the_same_arguments_is_right(number):
    p = clinic.patient(number)
    loc, lens = p.loc, p.commit_lens
    right = verdict(p, lambda: p.pool.set_kv_buffer_prefix_valid(p.layer, loc, lens, p.k, p.v))
    assert right.ok and right.counts["right"] > 0


@needs_triton
def test_rows_of_the_large_pool_land_four_gigabytes_before_their_place():
    p = clinic.patient(7)
    p.run()
    read = p.pool.gather(p.loc, layer=0)[0].view(torch.uint8).cpu()
    assert torch.equal(read[0], p.k.view(torch.uint8).cpu()[0]) and not read[1].any()
    slot, row = 2_100_001, p.k[0].nbytes
    wrapped = int(np.int32(np.int64(slot * row).astype(np.int32)))
    start = p.pool.view("k", 0).data_ptr() + wrapped
    place = kvlab.where(p.pool, start)
    assert (place.cell.field, slot * row - wrapped) == ("v", 1 << 32)
    p.pool.commit(p.loc, p.k, p.v, layer=0, commit_lens=p.commit_lens)
    assert torch.equal(p.pool.gather(p.loc, layer=0)[0].view(torch.uint8).cpu(), p.k.view(torch.uint8).cpu())


@pytest.mark.skipif(backend() != "interpreter", reason="who sees kernels of the interpreter")
def test_who_shows_the_distance_that_is_asked_for():
    p = clinic.patient(7)
    row = p.pool.view("k", 0)[2_100_001].view(torch.uint8)
    words = str(who({"row": row}, p.run))
    assert f"{ANSWERS[7].right(p):,} bytes before row" in words


@needs_triton
@pytest.mark.parametrize("number", NUMBERS)
def test_only_the_right_diagnosis_counts(number, capsys):
    answer = ANSWERS[number]
    number_found = answer.right(clinic.patient(number))
    assert clinic.diagnose(number, answer.cause, number_found)
    assert capsys.readouterr().out.startswith("Right.")
    assert not clinic.diagnose(number, answer.cause, number_found + 1)
    for cause in clinic.CAUSES:
        assert clinic.diagnose(number, cause, number_found) is (cause == answer.cause)
    assert not clinic.diagnose(number, ...)
    assert answer.evidence in capsys.readouterr().out


def test_every_cause_of_the_cases_is_a_choice_and_there_are_others():
    causes = {a.cause for a in ANSWERS.values()}
    assert len(causes) == 8 and causes < set(clinic.CAUSES)


def test_bad_input():
    with pytest.raises(ValueError, match="number=9 is not one of 1 … 8"):
        clinic.patient(9)
    with pytest.raises(ValueError, match="cause='gremlins' is not one of"):
        clinic.diagnose(1, "gremlins", 3)
    with pytest.raises(ValueError, match="number=0 is not one of"):
        clinic.diagnose(0, ...)
