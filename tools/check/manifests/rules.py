"""What winget and scoop ask of a manifest, as JSON schemas of the keys that ours have.

Types, patterns, lengths and values are those of winget's own schemas, version 1.12.0
(github.com/microsoft/winget-cli, schemas/JSON/manifests/v1.12.0), and of scoop's (schema.json of
github.com/ScoopInstaller/Scoop), which no package of npm, PyPI or NuGet that we know of carries. Ours
are stricter in one way: each key that we write must be there, and no other may.
"""


def exact(properties, **more):
    """An object with all of these keys and no other."""
    rules = {"type": "object", "properties": properties, "additionalProperties": False}
    return rules | {"required": list(properties)} | more


def text(shortest, longest):
    return {"type": "string", "minLength": shortest, "maxLength": longest}


def pattern(pattern, longest=None):
    rules = {"type": "string", "pattern": pattern}
    return rules if longest is None else rules | {"maxLength": longest}


def items(rules, **more):
    return {"type": "array", "items": rules, "minItems": 1} | more


PART = r"[^.\s\\/:*?\"<>|\x01-\x1f]{1,32}"
LOCALE = pattern(r"^([a-zA-Z]{2,3}|[iI]-[a-zA-Z]+|[xX]-[a-zA-Z]{1,8})(-[a-zA-Z]{1,8})*$", 20)
URL = pattern(r"^([Hh][Tt][Tt][Pp][Ss]?)://.+$", 2048)
TAG = text(1, 40)


def winget(kind, properties):
    return exact(
        {
            "PackageIdentifier": pattern(rf"^{PART}(\.{PART}){{1,7}}$", 128),
            "PackageVersion": pattern(r"^[^\\/:*?\"<>|\x01-\x1f]+$", 128),
        }
        | properties
        | {"ManifestType": {"const": kind}, "ManifestVersion": {"const": "1.12.0"}}
    )


NESTED = exact({"RelativeFilePath": text(1, 512), "PortableCommandAlias": text(1, 40)})
INSTALLER = exact(
    {
        "Architecture": {"enum": ["x86", "x64", "arm", "arm64", "neutral"]},
        "InstallerUrl": URL,
        "InstallerSha256": pattern(r"^[A-Fa-f0-9]{64}$"),
        "NestedInstallerFiles": items(NESTED, maxItems=1024),
    }
)
WINGET = {
    "version": winget("version", {"DefaultLocale": LOCALE}),
    "installer": winget(
        "installer",
        {
            # Theirs have more values. Of an archive with a program only these make sense.
            "InstallerType": {"const": "zip"},
            "NestedInstallerType": {"const": "portable"},
            "Installers": items(INSTALLER, maxItems=1024),
        },
    ),
    "defaultLocale": winget(
        "defaultLocale",
        {
            "PackageLocale": LOCALE,
            "Publisher": text(2, 256),
            "PublisherUrl": URL,
            "PublisherSupportUrl": URL,
            "PackageName": text(2, 256),
            "PackageUrl": URL,
            "License": text(3, 512),
            "ShortDescription": text(3, 256),
            "Moniker": TAG,
            "Tags": items(TAG, maxItems=16, uniqueItems=True),
            "ReleaseNotesUrl": URL,
        },
    ),
}

# Only in `autoupdate` is a dollar sign more than a letter.
PLAIN_URL = pattern(r"^https://[^$]+$")
NOW = exact(
    {"url": PLAIN_URL, "hash": pattern(r"^[a-fA-F0-9]{64}$"), "extract_dir": {"type": "string"}}
)
LATER = exact({"url": pattern(r"^https://.+$"), "extract_dir": {"type": "string"}})


def machines(rules):
    names = {name: rules for name in ["32bit", "64bit", "arm64"]}
    return {
        "type": "object",
        "properties": names,
        "additionalProperties": False,
        "minProperties": 1,
    }


SCOOP = exact(
    {
        "version": pattern(r"^[\w.\-+]+$"),
        "description": {"type": "string"},
        "homepage": PLAIN_URL,
        "license": {"type": "string"},
        "architecture": machines(NOW),
        "bin": {"type": "string"},
        # Tags of the homepage, which must be a repository of GitHub.
        "checkver": {"const": "github"},
        "autoupdate": exact(
            {
                "architecture": machines(LATER),
                "hash": exact({"url": pattern(r"^.*(\$url|\$baseurl).*$")}),
            }
        ),
    }
)
