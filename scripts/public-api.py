"""Prints the public items of a crate, a line for each, from the JSON of rustdoc: names, signatures, traits."""

import json
import sys


def main() -> None:
    """Reads the file that the argument names."""
    crate = json.load(open(sys.argv[1]))
    items = crate["index"]
    print(*sorted(set(lines(items, items[str(crate["root"])]))), sep="\n")


def lines(items, item, path="", depth=0):
    """The lines of an item and of the items in it, whose names begin with the path."""
    kind, inner = next(iter(item["inner"].items()))
    if kind == "use":
        target = items.get(str(inner["id"]))
        return lines(items, target | {"name": inner["name"]}, path, depth) if target else [f"{path}{inner['name']}"]
    name = f"{path}{item['name']}"
    inside = [items[str(id)] for id in inner.get("items", []) + inner.get("impls", []) if str(id) in items]
    if kind == "module":
        prefix = f"{name}::" if depth else ""
        return [line for each in inside if public(each) for line in lines(items, each, prefix, depth + 1)]
    blocks = [each["inner"]["impl"] for each in inside if "impl" in each["inner"]]
    blocks = [block for block in blocks if not block["is_synthetic"] and not block["blanket_impl"]]
    traits = sorted(shown({"resolved_path": block["trait"]}) for block in blocks if block["trait"])
    traits = [trait for trait in traits if trait != "StructuralPartialEq"]  # comes with PartialEq
    frozen = " non_exhaustive" if "non_exhaustive" in item["attrs"] else ""
    found = [f"{kind} {name}{shape(items, item)}{frozen}{': ' if traits else ''}{', '.join(traits)}"]
    own = [items[str(id)] for block in blocks if not block["trait"] for id in block["items"]]
    for each in own + [each for each in inside if "impl" not in each["inner"]]:
        if kind in ("enum", "trait") or public(each):
            found += lines(items, each, f"{name}::", depth + 1)
    return found


def public(item):
    """Whether others can name it: it is public, or of a trait."""
    return item["visibility"] == "public" and "doc(hidden)" not in str(item["attrs"])


def shape(items, item):
    """What stands behind the name of an item: parameters and result, a type, or the fields or variants."""
    kind, inner = next(iter(item["inner"].items()))
    if kind == "function":
        result = inner["sig"]["output"]
        parameters = ", ".join(f"{name}: {shown(of)}" for name, of in inner["sig"]["inputs"])
        return f"({parameters}){f' -> {shown(result)}' if result else ''}"
    if kind == "struct_field":
        return f": {shown(inner)}"
    if kind not in ("struct", "enum", "variant"):
        return ""
    fields = inner.get("kind", {}) if isinstance(inner.get("kind"), dict) else {}
    named = fields.get("plain", fields.get("struct", {})).get("fields", [])
    parts = named + fields.get("tuple", []) + inner.get("variants", [])
    parts = [items[str(number)] for number in parts if str(number) in items]
    parts = [f"{part['name']}{shape(items, part)}" for part in parts if kind != "struct" or public(part)]
    return f" {{{', '.join(parts)}}}" if parts else ""


def shown(of):
    """A type as it is written, without the paths of names."""
    kind, inner = next(iter(of.items()))
    if kind == "resolved_path":
        return inner["path"].split("::")[-1] + arguments(inner["args"])
    if kind == "borrowed_ref":
        return f"&{'mut ' * inner['is_mutable']}{shown(inner['type'])}"
    if kind == "tuple":
        return f"({', '.join(map(shown, inner))})"
    if kind in ("slice", "array"):
        return f"[{shown(inner if kind == 'slice' else inner['type'])}]"
    if kind in ("impl_trait", "dyn_trait"):
        bounds = inner if kind == "impl_trait" else inner["traits"]
        named = [bound.get("trait_bound", bound) for bound in bounds]
        words = [shown({"resolved_path": bound["trait"]}) if "trait" in bound else bound["outlives"] for bound in named]
        return f"{kind.split('_')[0]} {' + '.join(words)}"
    if kind == "qualified_path":
        return f"{shown(inner['self_type'])}::{inner['name']}"
    return inner if isinstance(inner, str) else kind


def arguments(of):
    """The arguments of a generic type or trait, in their brackets."""
    if not of:
        return ""
    if "parenthesized" in of:
        result = of["parenthesized"]["output"]
        return f"({', '.join(map(shown, of['parenthesized']['inputs']))}){f' -> {shown(result)}' if result else ''}"
    types = [shown(each["type"]) for each in of.get("angle_bracketed", {}).get("args", []) if "type" in each]
    return f"<{', '.join(types)}>" if types else ""


if __name__ == "__main__":
    main()
