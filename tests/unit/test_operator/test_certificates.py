"""Certificates of the operator: made once, renewed in time, and trusted before they are shown."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from services.operator.certificates import Data, is_due, renewed

NAMES = ("wooly-operator.wooly-system.svc", "localhost")
DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return renewed({}, tmp_path_factory.mktemp("first"), NAMES, NOW)


def authorities(data: Data) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(data["ca.crt"])


def served(data: Data) -> x509.Certificate:
    return x509.load_pem_x509_certificate(data["tls.crt"])


def test_what_is_good_stays(first: Data, tmp_path: Path) -> None:
    assert renewed(first, tmp_path, NAMES, NOW) == first
    served(first).verify_directly_issued_by(authorities(first)[0])


def test_a_certificate_is_renewed_after_two_thirds_of_its_time_by_the_same_authority(first: Data, tmp_path: Path) -> None:
    end = served(first).not_valid_after_utc - served(first).not_valid_before_utc
    assert not is_due(served(first), NOW + end * 2 / 3 - 3 * DAY) and is_due(served(first), NOW + end * 2 / 3 + DAY)
    later = renewed(first, tmp_path, NAMES, NOW + end * 2 / 3 + DAY)
    assert later["tls.crt"] != first["tls.crt"] and later["ca.crt"] == first["ca.crt"]
    served(later).verify_directly_issued_by(authorities(first)[0])


def test_a_new_authority_comes_beside_the_old_one(first: Data, tmp_path: Path) -> None:
    later = renewed(first, tmp_path, NAMES, NOW + 3000 * DAY)
    new, old = authorities(later)
    assert old == authorities(first)[0] and new != old, "replicas that show the old certificate are still believed"
    served(later).verify_directly_issued_by(new)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("lost", ["tls.crt", "tls.key", "ca.key", "ca.crt"])
def test_what_is_lost_or_damaged_is_made_anew(first: Data, tmp_path: Path, lost: str, damaged: bool) -> None:
    kept = {key: value for key, value in first.items() if key != lost}
    found = renewed({**kept, lost: b"damaged"} if damaged else kept, tmp_path, NAMES, NOW)
    served(found).verify_directly_issued_by(authorities(found)[0])
    key = serialization.load_pem_private_key(found["tls.key"], None)
    assert found[lost] != first[lost] and served(found).public_key() == key.public_key()


def test_a_new_name_needs_a_new_certificate(first: Data, tmp_path: Path) -> None:
    found = renewed(first, tmp_path, ("other.wooly-system.svc", "localhost"), NOW)
    assert found["tls.crt"] != first["tls.crt"] and found["ca.crt"] == first["ca.crt"]
