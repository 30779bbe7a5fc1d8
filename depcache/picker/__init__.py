# SPDX-License-Identifier: Apache-2.0
"""Chooses the server that holds most of a request's roots."""

from depcache.picker.choice import Choice, Picker
from depcache.picker.listener import Listener

__all__ = ["Choice", "Listener", "Picker"]
