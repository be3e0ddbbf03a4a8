//! Properties that ranks exchange before they load a model.

/// Properties that a rank reports before it loads a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Names and values that must be equal on all ranks.
    pub same: Vec<(&'static str, String)>,
    /// Numbers of which the minimum over all ranks applies.
    pub least: Vec<u64>,
}

impl Hello {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = String::new();
        for (name, value) in &self.same {
            text += &format!("{name}\t{value}\n");
        }
        let least: Vec<String> = self.least.iter().map(u64::to_string).collect();
        text += &format!("\t{}", least.join(" "));
        text.into_bytes()
    }

    /// Reads the names with values, and the numbers.
    pub(super) fn read(bytes: &[u8]) -> Option<(Properties, Vec<u64>)> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (same, least) = text.rsplit_once("\n\t")?;
        let pair = |line: &str| line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned()));
        let same = same.lines().map(pair).collect::<Option<_>>()?;
        let least = least.split_whitespace().map(|it| it.parse().ok()).collect::<Option<_>>()?;
        Some((same, least))
    }
}

/// Names with values.
pub(super) type Properties = Vec<(String, String)>;

/// Describes the first difference between two ranks, if any.
pub(super) fn difference(first: &[(String, String)], other: &[(String, String)]) -> Option<String> {
    let pairs = first.iter().zip(other);
    let found = pairs
        .into_iter()
        .find(|(a, b)| a != b)
        .map(|((name, a), (_, b))| format!("{name} differs: {b}, but {a} on rank 0"));
    let differs = first.len() != other.len();
    found.or_else(|| differs.then(|| "runs a different version of moeflux".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let hello = |model: &str| Hello {
            same: vec![("version", "1".to_owned()), ("model", model.to_owned())],
            least: vec![3, 4],
        };
        let read = |hello: &Hello| Hello::read(&hello.to_bytes()).unwrap();
        let (first, least) = read(&hello("ab"));
        assert_eq!(least, [3, 4]);
        assert_eq!(difference(&first, &read(&hello("ab")).0), None);
        let text = difference(&first, &read(&hello("cd")).0);
        assert_eq!(text.as_deref(), Some("model differs: cd, but ab on rank 0"));
    }
}
