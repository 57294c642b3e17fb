"""LiteLLM plug-in of the fleet: who may ask for what, what may leave the fleet, and which host has a free card.

LiteLLM loads two names: `gateway_guard.auth.user_api_key_auth` and `gateway_guard.guard.guard`. Everything else is plain Python without LiteLLM.
"""

from __future__ import annotations
