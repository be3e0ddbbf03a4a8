//! The constraint on an answer after its thoughts.
//!
//! **Invariant:** a token that [`BodyConstraint::apply`] allowed is accepted by
//! [`BodyConstraint::accept`]. This module is independent of thoughts.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use moeflux::TokenId;

use crate::calls::scan::ScanError;
use crate::grammar::bare::BareStart;
use crate::grammar::marker::{Marker, Matched};
use crate::grammar::model::{GrammarModel, forbid_all_but};
use crate::grammar::problems::sentence;

/// The constraint on the rest of an answer.
#[derive(Clone)]
pub(crate) enum BodyConstraint {
    /// Any text.
    Free,
    /// Any text except calls, which follow a grammar or are forbidden.
    Watched(WatchedText),
    /// A call, and the text state to return to after it.
    Call(Box<Matcher>, WatchedText),
    /// A grammar up to its end.
    Bound(Box<Matcher>),
    /// One of several grammars up to its end: those that allow the text so far.
    Either(Vec<Matcher>),
}

/// Text that is searched for the opening marker of a call.
#[derive(Clone, Default)]
pub(crate) struct WatchedText {
    /// The opening marker of calls, and the grammar after it.
    calls: Option<(MarkerWatch, Box<Matcher>)>,
    /// Markers that must not be written.
    forbidden: Vec<MarkerWatch>,
    after_call: AfterCall,
    /// The start of the answer, as long as it may become a call without a marker.
    bare: Option<BareStart>,
}

/// A marker, and the length of its prefix that the text ends with.
#[derive(Clone)]
struct MarkerWatch {
    marker: Arc<Marker>,
    matched: Matched,
}

/// The text that may follow a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AfterCall {
    /// Any text, and more calls.
    #[default]
    Calls,
    /// Any text without calls.
    Text,
    /// Nothing.
    End,
}

/// The failure of a vocabulary without tokens for some bytes.
const UNSPELLED: &str = "no tokens spell the text of a marker";

/// A call at its start, with the text that already belongs to it.
type CallStart = (Box<Matcher>, Vec<u8>);

impl fmt::Debug for BodyConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "Free",
            Self::Watched(_) => "Watched",
            Self::Call(..) => "Call",
            Self::Bound(_) => "Bound",
            Self::Either(_) => "Either",
        })
    }
}

impl MarkerWatch {
    fn new(marker: Arc<Marker>) -> Self {
        Self { marker, matched: Matched::default() }
    }

    fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        self.marker.push(&mut self.matched, bytes)
    }
}

impl WatchedText {
    /// Creates text without these markers.
    pub(crate) fn without(markers: impl IntoIterator<Item = Arc<Marker>>) -> Self {
        let forbidden = markers.into_iter().map(MarkerWatch::new).collect();
        Self { forbidden, ..Self::default() }
    }

    /// Allows calls of this grammar after an opening marker.
    pub(crate) fn with_calls(
        self,
        opener: Arc<Marker>,
        call: Matcher,
        after_call: AfterCall,
    ) -> Self {
        Self { calls: Some((MarkerWatch::new(opener), Box::new(call))), after_call, ..self }
    }

    /// Also allows such calls without a marker at the start of the answer.
    pub(crate) fn with_bare_calls(self, bare: BareStart) -> Self {
        Self { bare: Some(bare), ..self }
    }

    /// Forbids one more marker.
    pub(crate) fn and_without(mut self, marker: Arc<Marker>) -> Self {
        self.forbidden.push(MarkerWatch::new(marker));
        self
    }

    /// Takes text that precedes the answer.
    pub(crate) fn begin_after(&mut self, text: &str) {
        let opener = self.calls.as_mut().map(|(opener, _)| opener);
        for watch in self.forbidden.iter_mut().chain(opener) {
            watch.push(text.as_bytes());
        }
    }

    /// Forbids tokens that complete a forbidden marker, and tokens that complete the opening marker
    /// of calls with a rest that cannot begin a call.
    fn apply(&mut self, model: &GrammarModel, logits: &mut [f32]) {
        let mut forbid = |token: TokenId| {
            if let Some(logit) = logits.get_mut(token.0 as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        for MarkerWatch { marker, matched } in &self.forbidden {
            marker.completions(*matched, &model.vocabulary).for_each(|(token, _)| forbid(token));
        }
        if let Some((MarkerWatch { marker, matched }, call)) = &mut self.calls {
            for (token, rest) in marker.completions(*matched, &model.vocabulary) {
                if !may_begin(call, model, rest) {
                    forbid(token);
                }
            }
            let begun = self.bare.as_ref().filter(|it| it.is_begun()).zip(model.colon.as_ref());
            let Some((bare, colon)) = begun else { return };
            for (token, _) in colon.completions(Matched::default(), &model.vocabulary) {
                let found = bare.clone().push(model.vocabulary.bytes(token));
                if found.is_ok_and(|text| !may_begin(call, model, &text)) {
                    forbid(token);
                }
            }
        }
    }

    /// Takes text. Returns the call that begins in it, with the bytes that already belong to the
    /// call.
    fn push(&mut self, bytes: &[u8]) -> Result<Option<CallStart>, String> {
        for watch in &mut self.forbidden {
            if watch.push(bytes).is_some() {
                return Err("a marker where none is allowed".to_owned());
            }
        }
        let Some((opener, call)) = &mut self.calls else { return Ok(None) };
        let marked = opener.push(bytes).map(|end| bytes[end..].to_vec());
        let bare = self.bare.as_mut().map(|it| it.push(bytes));
        if !matches!(bare, Some(Err(ScanError::Incomplete))) {
            self.bare = None;
        }
        let Some(text) = marked.or(bare.and_then(Result::ok)) else { return Ok(None) };
        let start = (call.clone(), text);
        if self.after_call == AfterCall::Text
            && let Some((opener, _)) = self.calls.take()
        {
            self.forbidden.push(opener);
        }
        Ok(Some(start))
    }
}

impl BodyConstraint {
    /// Returns whether the answer is incomplete before this body ends.
    pub(crate) fn is_bound(&self) -> bool {
        matches!(self, Self::Bound(_) | Self::Either(_))
    }

    /// Takes text that precedes the answer.
    pub(crate) fn begin_after(&mut self, text: &str) {
        if let Self::Watched(watched) = self {
            watched.begin_after(text);
        }
    }

    /// Masks the forbidden tokens in `logits`.
    pub(crate) fn apply(&mut self, model: &GrammarModel, logits: &mut [f32]) -> Result<(), String> {
        match self {
            Self::Free => model.vocabulary.forbid_padding(logits),
            Self::Watched(watched) => {
                model.vocabulary.forbid_padding(logits);
                watched.apply(model, logits);
            }
            Self::Call(matcher, _) | Self::Bound(matcher) => {
                let allowed = matcher.compute_mask_or_eos().map_err(|error| sentence(&error))?;
                forbid_all_but(&allowed, logits);
                model.vocabulary.forbid_padding(logits);
            }
            Self::Either(matchers) => {
                let masks = matchers.iter_mut().map(Matcher::compute_mask_or_eos);
                let masks = masks.collect::<Result<Vec<_>, _>>().map_err(|it| sentence(&it))?;
                let allowed = masks.into_iter().reduce(|mut all, mask| {
                    all.or(&mask);
                    all
                });
                forbid_all_but(&allowed.ok_or("no grammar is left")?, logits);
                model.vocabulary.forbid_padding(logits);
            }
        }
        Ok(())
    }

    /// Takes a token.
    pub(crate) fn accept(&mut self, model: &GrammarModel, token: TokenId) -> Result<(), String> {
        match self {
            Self::Call(matcher, _) | Self::Bound(matcher) => {
                matcher.consume_token(token.0).map_err(|error| sentence(&error))?;
                self.leave_call();
                Ok(())
            }
            Self::Either(_) => self.accept_either(&[token.0]),
            Self::Free | Self::Watched(_) => {
                self.accept_bytes(model, model.vocabulary.bytes(token))
            }
        }
    }

    /// Keeps the grammars that allow these tokens.
    fn accept_either(&mut self, tokens: &[u32]) -> Result<(), String> {
        let Self::Either(matchers) = self else { return Ok(()) };
        let mut kept = Vec::new();
        for mut matcher in std::mem::take(matchers) {
            if matcher.validate_tokens(tokens).is_ok_and(|n_valid| n_valid == tokens.len()) {
                matcher.consume_tokens(tokens).map_err(|error| sentence(&error))?;
                kept.push(matcher);
            }
        }
        *self = match kept.len() {
            0 => return Err("a token that no grammar allows".to_owned()),
            1 => Self::Bound(Box::new(kept.remove(0))),
            _ => Self::Either(kept),
        };
        Ok(())
    }

    /// Takes the rest of a token that began elsewhere.
    pub(crate) fn accept_bytes(
        &mut self,
        model: &GrammarModel,
        bytes: &[u8],
    ) -> Result<(), String> {
        match self {
            Self::Free => Ok(()),
            Self::Watched(watched) => {
                if let Some((call, rest)) = watched.push(bytes)? {
                    *self = Self::Call(call, watched.clone());
                    self.accept_bytes(model, &rest)?;
                }
                Ok(())
            }
            Self::Call(matcher, _) | Self::Bound(matcher) => {
                let tokens = model.spelled(bytes).ok_or(UNSPELLED)?;
                matcher.consume_tokens(&tokens).map_err(|error| sentence(&error))?;
                self.leave_call();
                Ok(())
            }
            Self::Either(_) => self.accept_either(&model.spelled(bytes).ok_or(UNSPELLED)?),
        }
    }

    /// Returns whether the rest of a token that began elsewhere is allowed.
    pub(crate) fn may_take(&mut self, model: &GrammarModel, rest: &[u8]) -> bool {
        match self {
            Self::Free => true,
            Self::Watched(_) => self.clone().accept_bytes(model, rest).is_ok(),
            Self::Call(matcher, _) | Self::Bound(matcher) => may_begin(matcher, model, rest),
            Self::Either(matchers) => matchers.iter_mut().any(|it| may_begin(it, model, rest)),
        }
    }

    fn leave_call(&mut self) {
        if let Self::Call(matcher, watched) = self
            && watched.after_call != AfterCall::End
            && matcher.is_stopped()
            && !matcher.is_error()
        {
            *self = Self::Watched(watched.clone());
        }
    }

    /// Returns whether the answer may end here.
    pub(crate) fn may_end(&mut self) -> bool {
        match self {
            Self::Free | Self::Watched(_) => true,
            Self::Call(matcher, _) | Self::Bound(matcher) => may_stop(matcher),
            Self::Either(matchers) => matchers.iter_mut().any(may_stop),
        }
    }

    /// Returns the tokens that are forced.
    pub(crate) fn forced(&mut self) -> Result<Vec<TokenId>, String> {
        match self {
            Self::Free | Self::Watched(_) | Self::Either(_) => Ok(Vec::new()),
            Self::Call(matcher, _) | Self::Bound(matcher) => {
                if matcher.is_stopped() && !matcher.is_error() {
                    return Ok(Vec::new());
                }
                let tokens = matcher.compute_ff_tokens().into_iter().map(TokenId).collect();
                matcher.get_error().map_or(Ok(tokens), |error| Err(sentence(&error)))
            }
        }
    }
}

fn may_stop(matcher: &mut Matcher) -> bool {
    matcher.is_stopped() || matcher.is_accepting().unwrap_or(true)
}

fn may_begin(matcher: &mut Matcher, model: &GrammarModel, rest: &[u8]) -> bool {
    if rest.is_empty() {
        return true;
    }
    let Some(tokens) = model.spelled(rest) else { return false };
    matcher.validate_tokens(&tokens).is_ok_and(|n_valid| n_valid == tokens.len())
}
