//! Parses pasted links to the hub's pages.
//!
//! **Invariant:** pure; only the form is checked.

/// The hosts of the hub's pages.
const HOSTS: [&str; 3] = ["huggingface.co", "hf.co", "www.huggingface.co"];

/// The parts of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HubLink<'a> {
    /// `OWNER/NAME`, possibly with `:QUANT`.
    pub(crate) name: &'a str,
    pub(crate) revision: Option<&'a str>,
    pub(crate) file: Option<&'a str>,
}

/// Parses `https://huggingface.co/OWNER/NAME/...` and `hf.co/OWNER/NAME`; `None` if the text is not
/// a link to the hub.
pub(crate) fn of(text: &str) -> Option<HubLink<'_>> {
    let schemes = ["https://", "http://", ""];
    let path = schemes.iter().find_map(|scheme| {
        let rest = text.strip_prefix(scheme)?;
        let (host, path) = rest.split_once('/')?;
        HOSTS.iter().any(|it| host.eq_ignore_ascii_case(it)).then_some(path)
    })?;
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let is_model = !["datasets/", "spaces/"].iter().any(|it| path.starts_with(it));
    let Some((at, _)) = path.match_indices('/').nth(1).filter(|_| is_model) else {
        return Some(HubLink { name: path, revision: None, file: None });
    };
    let (name, mut rest) = (&path[..at], path[at + 1..].splitn(3, '/'));
    let is_of_files =
        rest.next().is_some_and(|it| ["tree", "blob", "resolve", "raw"].contains(&it));
    let revision = rest.next().filter(|_| is_of_files);
    Some(HubLink { name, revision, file: rest.next().filter(|_| is_of_files) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasted_links_name_a_model() {
        let check = |text: &str, name, revision, file| {
            assert_eq!(of(text), Some(HubLink { name, revision, file }), "{text}");
        };
        check("https://huggingface.co/a/b", "a/b", None, None);
        check("http://HuggingFace.co/a/b/", "a/b", None, None);
        check("hf.co/a/b:Q4_K_M", "a/b:Q4_K_M", None, None);
        check("https://hf.co/a/b/tree/v1", "a/b", Some("v1"), None);
        check("https://huggingface.co/a/b/tree/main/Q4", "a/b", Some("main"), Some("Q4"));
        let file = Some("x/y-Q4_K_M.gguf");
        check("https://huggingface.co/a/b/blob/main/x/y-Q4_K_M.gguf", "a/b", Some("main"), file);
        let link = "https://huggingface.co/a/b/resolve/main/y.gguf?download=true#x";
        check(link, "a/b", Some("main"), Some("y.gguf"));
        check("https://huggingface.co/a/b/discussions/1", "a/b", None, None);
        check("https://huggingface.co/a", "a", None, None);
        // No repository has such a name, so it is refused under it.
        check("https://huggingface.co/datasets/a/b", "datasets/a/b", None, None);
    }

    #[test]
    fn other_texts_are_not_links() {
        for text in
            ["", "a/b", "https://example.com/a/b", "https://", "ftp://hf.co/a/b", "hf.com/a/b"]
        {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
