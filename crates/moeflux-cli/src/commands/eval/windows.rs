//! Cuts a text's tokens into the windows that `moeflux eval` feeds.
//!
//! **Invariant:** no token is predicted twice. Each window begins with the tokens that the model
//! expects at the start of every text (its BOS token, if it has one), unscored; a token with none
//! before it in its window is not predicted. This module is independent of models and tokenizers.

use std::ops::Range;

use moeflux::TokenId;

/// How a text is cut into windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowParams {
    /// Tokens that begin each window and are not part of the text.
    pub(crate) prefix: Vec<TokenId>,
    /// The token that ends documents, which share no window.
    pub(crate) separator: Option<TokenId>,
    /// Tokens of a full window, including the prefix.
    pub(crate) context: usize,
    /// Tokens from the start of one window of a document to the start of the next.
    pub(crate) stride: usize,
}

/// A text cut into windows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextWindows {
    /// How it was cut.
    pub(crate) params: WindowParams,
    /// Windows that predict something.
    pub(crate) windows: Vec<TextWindow>,
    /// Parts of the text that share no window.
    pub(crate) n_documents: usize,
    /// The documents one after the other, each with the token before its first, if any.
    tokens: Vec<TokenId>,
}

/// One window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextWindow {
    /// The range of tokens after the prefix.
    span: Range<usize>,
    /// Index of the first predicted token, counting the prefix.
    pub(crate) first_predicted: usize,
}

impl TextWindows {
    /// Cuts a text. A context must hold the prefix and a prediction, a stride must not skip any
    /// token.
    pub(crate) fn of(text: &[TokenId], params: WindowParams) -> Self {
        let n_room =
            params.context.checked_sub(params.prefix.len()).expect("a context holds the prefix");
        assert!((1..=n_room).contains(&params.stride), "windows of {n_room} skip or stand still");
        let mut all = Self { params, windows: Vec::new(), n_documents: 0, tokens: Vec::new() };
        match all.params.separator {
            None => all.add_document(text, n_room),
            Some(separator) => {
                let documents = text.split_inclusive(|token| *token == separator);
                // A separator at the start of a text ends nothing.
                for document in documents.filter(|document| **document != [separator]) {
                    // A model without a start token has seen the separator there.
                    let lead = Some(separator).filter(|_| all.params.prefix.is_empty());
                    let document: Vec<TokenId> =
                        lead.into_iter().chain(document.to_vec()).collect();
                    all.add_document(&document, n_room);
                }
            }
        }
        all
    }

    fn add_document(&mut self, document: &[TokenId], n_room: usize) {
        let n_prefix = self.params.prefix.len();
        let n_unpredicted = usize::from(n_prefix == 0);
        let first = self.tokens.len();
        self.tokens.extend_from_slice(document);
        self.n_documents += 1;
        let (mut start, mut n_done) = (0, n_unpredicted);
        while n_done < document.len() {
            let end = document.len().min(start + n_room);
            let n_known = n_done.max(start + n_unpredicted) - start;
            if start + n_known < end {
                let span = first + start..first + end;
                self.windows.push(TextWindow { span, first_predicted: n_prefix + n_known });
            }
            n_done = end;
            start += self.params.stride;
        }
    }

    /// Returns a window's tokens, including the prefix.
    pub(crate) fn tokens(&self, window: &TextWindow) -> Vec<TokenId> {
        [&self.params.prefix[..], &self.tokens[window.span.clone()]].concat()
    }

    /// Returns the number of predicted tokens of a window.
    pub(crate) fn n_predicted(&self, window: &TextWindow) -> usize {
        self.params.prefix.len() + window.span.len() - window.first_predicted
    }

    /// Returns the predicted tokens, in order.
    pub(crate) fn predicted(&self) -> impl Iterator<Item = TokenId> {
        let n_prefix = self.params.prefix.len();
        let tokens_of = move |window: &TextWindow| {
            let first = window.span.start + window.first_predicted - n_prefix;
            self.tokens[first..window.span.end].iter().copied()
        };
        self.windows.iter().flat_map(tokens_of)
    }

    /// Returns the number of tokens of each window, including the prefix.
    pub(crate) fn lens(&self) -> impl Iterator<Item = usize> {
        self.windows.iter().map(|window| self.params.prefix.len() + window.span.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    /// `expected`: for each window, the tokens that are only read, then those that are predicted. 9
    /// is the start token, 0 the separator.
    #[track_caller]
    fn check(text: &[u32], (context, stride): (usize, usize), expected: &[(&[u32], &[u32])]) {
        check_cut(text, cut(&[], None, (context, stride)), expected);
    }

    fn cut(
        prefix: &[u32],
        separator: Option<u32>,
        (context, stride): (usize, usize),
    ) -> WindowParams {
        WindowParams { prefix: tokens(prefix), separator: separator.map(TokenId), context, stride }
    }

    #[track_caller]
    fn check_cut(text: &[u32], params: WindowParams, expected: &[(&[u32], &[u32])]) {
        let all = TextWindows::of(&tokens(text), params);
        let mut found = Vec::new();
        for window in &all.windows {
            let mut known = all.tokens(window);
            let predicted = known.split_off(window.first_predicted);
            found.push((known, predicted));
        }
        let wanted = expected.iter().map(|(known, predicted)| (tokens(known), tokens(predicted)));
        assert_eq!(found, wanted.collect::<Vec<_>>());
        let predicted: Vec<TokenId> = found.iter().flat_map(|(_, it)| it.clone()).collect();
        assert_eq!(all.predicted().collect::<Vec<_>>(), predicted);
        let lens = found.iter().map(|(known, predicted)| known.len() + predicted.len());
        assert_eq!(all.lens().collect::<Vec<_>>(), lens.collect::<Vec<_>>());
    }

    #[test]
    fn windows_overlap_by_length_minus_stride() {
        check(&[1, 2, 3, 4, 5], (3, 3), &[(&[1], &[2, 3]), (&[4], &[5])]);
        check(&[1, 2, 3, 4], (3, 3), &[(&[1], &[2, 3])]);
        let expected: [(&[u32], &[u32]); 3] = [(&[1], &[2, 3]), (&[2, 3], &[4]), (&[3, 4], &[5])];
        check(&[1, 2, 3, 4, 5], (3, 1), &expected);
        check(&[1, 2, 3, 4, 5, 6], (4, 2), &[(&[1], &[2, 3, 4]), (&[3, 4], &[5, 6])]);
        check(&[1], (3, 1), &[]);
        check(&[], (3, 3), &[]);
    }

    #[test]
    fn the_prefix_begins_each_window() {
        let expected: [(&[u32], &[u32]); 2] = [(&[9], &[1, 2]), (&[9], &[3])];
        check_cut(&[1, 2, 3], cut(&[9], None, (3, 2)), &expected);
        let expected: [(&[u32], &[u32]); 2] = [(&[9], &[1, 2]), (&[9, 2], &[3])];
        check_cut(&[1, 2, 3], cut(&[9], None, (3, 1)), &expected);
    }

    #[test]
    fn documents_begin_after_a_separator_and_predict_their_own() {
        let text = [0, 1, 2, 0, 0, 3, 0, 4];
        let expected: [(&[u32], &[u32]); 3] = [(&[0], &[1, 2, 0]), (&[0], &[3, 0]), (&[0], &[4])];
        check_cut(&text, cut(&[], Some(0), (5, 5)), &expected);
        let expected: [(&[u32], &[u32]); 3] = [(&[9], &[1, 2, 0]), (&[9], &[3, 0]), (&[9], &[4])];
        check_cut(&text, cut(&[9], Some(0), (5, 4)), &expected);
        let expected: [(&[u32], &[u32]); 2] = [(&[0], &[1, 2]), (&[1, 2], &[0])];
        check_cut(&[1, 2, 0], cut(&[], Some(0), (3, 1)), &expected);
    }
}
