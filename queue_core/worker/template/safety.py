"""stub"""

import gc, contextlib


@contextlib.contextmanager
def recorded_threads():
    yield []


def find_hazards(*, own_descriptors, threads):
    return ()


def prepare_to_fork():
    gc.collect()
    gc.freeze()


def reseed():
    pass


def imported_files():
    return {}


def changed_files(known):
    return []
