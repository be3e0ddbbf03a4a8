//! The description of the HTTP interface, for tools.
//!
//! **Invariant:** it lists exactly the existing paths and methods; a test compares it with the
//! routes.

/// An `OpenAPI` 3.1 document.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;

    /// Collects the targets of all `$ref` fields in a document.
    fn references<'a>(json: &'a Json, found: &mut Vec<&'a str>) {
        match json {
            Json::Object(map) => {
                found.extend(map.get("$ref").and_then(Json::as_str));
                map.values().for_each(|value| references(value, found));
            }
            Json::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn the_document_is_whole() {
        let document: Json = serde_json::from_str(DOCUMENT).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(!found.is_empty());
        for reference in found {
            let path = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(path).is_some(), "{reference}");
        }
        for (path, methods) in document["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                assert!(operation["summary"].is_string(), "{path}");
                let is_described =
                    |status: &str| operation["responses"][status]["description"].is_string();
                assert!(is_described("200") || is_described("202"), "{path}");
            }
        }
    }
}
