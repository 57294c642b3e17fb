"""What must not leave in a piece of text: secrets and personal data by maintained detectors, the fleet's own names by pattern.

detect-secrets finds keys and passwords, phonenumbers and python-stdnum find personal numbers; each hit becomes a marker such as `[SECRET]`.
Text is over-redacted rather than under-redacted: it is a copy on its way out, the fleet keeps the original.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping

import phonenumbers
from detect_secrets.plugins import (
    artifactory,
    aws,
    azure_storage_key,
    basic_auth,
    cloudant,
    discord,
    github_token,
    gitlab_token,
    high_entropy_strings,
    jwt,
    keyword,
    mailchimp,
    npm,
    openai,
    pypi_token,
    sendgrid,
    slack,
    square_oauth,
    stripe,
    telegram_token,
    twilio,
)
from stdnum import iban, luhn
from stdnum.us import ssn

_DETECTORS = (
    artifactory.ArtifactoryDetector(),
    aws.AWSKeyDetector(),
    azure_storage_key.AzureStorageKeyDetector(),
    basic_auth.BasicAuthDetector(),
    cloudant.CloudantDetector(),
    discord.DiscordBotTokenDetector(),
    github_token.GitHubTokenDetector(),
    gitlab_token.GitLabTokenDetector(),
    jwt.JwtTokenDetector(),
    keyword.KeywordDetector(),
    mailchimp.MailchimpDetector(),
    npm.NpmDetector(),
    openai.OpenAIDetector(),
    pypi_token.PypiTokenDetector(),
    sendgrid.SendGridDetector(),
    slack.SlackDetector(),
    square_oauth.SquareOAuthDetector(),
    stripe.StripeDetector(),
    telegram_token.TelegramBotTokenDetector(),
    twilio.TwilioKeyDetector(),
    high_entropy_strings.Base64HighEntropyString(limit=4.5),
    high_entropy_strings.HexHighEntropyString(limit=3.0),
)
# Some detectors' expressions take time with the square of a line's length: long lines are read in pieces, each half of which is in its neighbour as well.
PIECE = 8192
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_DATA_URI = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w=.-]+)*;base64,[A-Za-z0-9+/=_-]*")
_KEY_LIKE = re.compile(r"\b(?:sk|pk|rk|key|ghp|gho|hf|xox[abp])[-_][A-Za-z0-9_-]{8,}|\bBearer\s+[A-Za-z0-9._~+/=-]{8,}")
_EMAIL = re.compile(r"[\w.+%-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_WALLET = re.compile(r"\b(?:prl1[pq][a-z0-9]{20,}|bc1[a-z0-9]{20,}|0x[0-9a-fA-F]{40})\b")
_CARD = re.compile(r"\bGPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
# Expressions begin where a run of their characters begins, and no part of one may match in two ways: else the time is the square of the text's length.
_TAILNET = re.compile(r"(?<![\w.-])[\w.-]*\.ts\.net\b")
_MAC = re.compile(r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")
_NUMBER = re.compile(r"\b\d(?:[ -]?\d){12,18}\b")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_WORD_END = re.compile(r"[ -]")
_SSN = re.compile(r"\b\d{3}-\d{2}-\d{4}\b")


class TextRedactor:
    """Callable text → redacted text. `node_names` are the fleet's hosts, `patterns` the operator's own (label → expression)."""

    def __init__(self, node_names: Iterable[str] = (), patterns: Mapping[str, str] | None = None) -> None:
        rules: list[tuple[re.Pattern[str], str]] = [(re.compile(pattern), f"[{label}]") for label, pattern in (patterns or {}).items()]
        names = sorted(set(node_names), key=len, reverse=True)
        if names:
            rules.append((re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])", re.IGNORECASE), "[NODE]"))
        self._rules = rules

    def __call__(self, text: str) -> str:
        text = _INVISIBLE.sub("", text)  # an invisible character inside a key would hide it from every detector
        text = _PRIVATE_KEY.sub("[PRIVATE KEY]", text)
        text = _DATA_URI.sub("[FILE]", text)
        for pattern, marker in self._rules:
            text = pattern.sub(marker, text)
        text = _WALLET.sub("[WALLET]", text)
        text = _CARD.sub("[CARD]", text)
        text = _TAILNET.sub("[NODE]", text)
        text = _without_secrets(text)
        text = _KEY_LIKE.sub("[SECRET]", text)
        text = _EMAIL.sub("[EMAIL]", text)
        text = _MAC.sub("[ADDRESS]", text)
        text = _replace_if(_IPV4, _is_foreign_address, "[ADDRESS]", text)
        text = _replace_if(_IPV6, _is_foreign_address, "[ADDRESS]", text)
        text = _replace_if(_SSN, ssn.is_valid, "[PERSONAL NUMBER]", text)
        text = _replace_beginning_if(_IBAN, iban.is_valid, "[ACCOUNT]", text)
        text = _replace_beginning_if(_NUMBER, _is_payment_card, "[PAYMENT CARD]", text)
        return _without_phone_numbers(text)


def _without_secrets(text: str) -> str:
    lines = text.split("\n")
    for number, line in enumerate(lines):
        pieces = [line[start : start + PIECE] for start in range(0, max(len(line) - PIECE // 2, 1), PIECE // 2)]
        found = {secret for detector in _DETECTORS for piece in pieces for secret in _secrets(detector.analyze_string, piece)}
        for secret in sorted(found, key=len, reverse=True):
            line = line.replace(secret, "[SECRET]")  # noqa: PLW2901  # one hit after the other
        lines[number] = line
    return "\n".join(lines)


def _secrets(analyze: Callable[[str], Iterable[object]], line: str) -> list[str]:
    return [secret for secret in analyze(line) if isinstance(secret, str) and len(secret) >= 4 and "[SECRET]" not in secret]


def _without_phone_numbers(text: str) -> str:
    if sum(character.isdigit() for character in text) < 7:
        return text
    spans = {(match.start, match.end) for region in (None, "US") for match in phonenumbers.PhoneNumberMatcher(text, region)}
    for start, end in sorted(spans, reverse=True):
        text = f"{text[:start]}[PHONE]{text[end:]}"
    return text


def _replace_if(pattern: re.Pattern[str], applies: Callable[[str], bool], marker: str, text: str) -> str:
    return pattern.sub(lambda match: marker if applies(match[0]) else match[0], text)


def _replace_beginning_if(pattern: re.Pattern[str], applies: Callable[[str], bool], marker: str, text: str) -> str:
    """Replace the longest beginning of each match, up to an end of a word, to which it applies: a number may be followed by words that look like more."""

    def redacted(match: re.Match[str]) -> str:
        ends = [len(match[0]), *(end.start() for end in reversed(list(_WORD_END.finditer(match[0]))))]
        return next((marker + match[0][end:] for end in ends if applies(match[0][:end])), match[0])

    return pattern.sub(redacted, text)


def _is_foreign_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _is_payment_card(text: str) -> bool:
    return bool(luhn.is_valid(re.sub(r"[ -]", "", text)))
