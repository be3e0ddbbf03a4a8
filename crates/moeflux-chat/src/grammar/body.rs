//! The constraint on an answer after its thoughts.
//!
//! **Invariant:** a token that [`BodyConstraint::apply`] allowed is accepted by
//! [`BodyConstraint::accept`]. This module is independent of thoughts.

use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;
use moeflux::TokenId;

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
}

/// Text that is searched for the opening marker of a call.
#[derive(Clone, Default)]
pub(crate) struct WatchedText {
    /// The opening marker of calls, and the grammar after it.
    calls: Option<(MarkerWatch, Box<Matcher>)>,
    /// Markers that must not be written.
    forbidden: Vec<MarkerWatch>,
    after_call: AfterCall,
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

/// A call at its start, with the text that already belongs to it.
type CallStart<'t> = (Box<Matcher>, &'t [u8]);

impl fmt::Debug for BodyConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "Free",
            Self::Watched(_) => "Watched",
            Self::Call(..) => "Call",
            Self::Bound(_) => "Bound",
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
        }
    }

    /// Takes text. Returns the call that begins in it, with the bytes that already belong to the
    /// call.
    fn push<'t>(&mut self, bytes: &'t [u8]) -> Result<Option<CallStart<'t>>, String> {
        for watch in &mut self.forbidden {
            if watch.push(bytes).is_some() {
                return Err("a marker where none is allowed".to_owned());
            }
        }
        let Some((opener, call)) = &mut self.calls else { return Ok(None) };
        let Some(end) = opener.push(bytes) else { return Ok(None) };
        let start = (call.clone(), &bytes[end..]);
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
        matches!(self, Self::Bound(_))
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
            Self::Free | Self::Watched(_) => {
                self.accept_bytes(model, model.vocabulary.bytes(token))
            }
        }
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
                    self.accept_bytes(model, rest)?;
                }
                Ok(())
            }
            Self::Call(matcher, _) | Self::Bound(matcher) => {
                let tokens = model.spelled(bytes).ok_or("no tokens spell the text of a marker")?;
                matcher.consume_tokens(&tokens).map_err(|error| sentence(&error))?;
                self.leave_call();
                Ok(())
            }
        }
    }

    /// Returns whether the rest of a token that began elsewhere is allowed.
    pub(crate) fn may_take(&mut self, model: &GrammarModel, rest: &[u8]) -> bool {
        match self {
            Self::Free => true,
            Self::Watched(_) => self.clone().accept_bytes(model, rest).is_ok(),
            Self::Call(matcher, _) | Self::Bound(matcher) => may_begin(matcher, model, rest),
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
            Self::Call(matcher, _) | Self::Bound(matcher) => {
                matcher.is_stopped() || matcher.is_accepting().unwrap_or(true)
            }
        }
    }

    /// Returns the tokens that are forced.
    pub(crate) fn forced(&mut self) -> Result<Vec<TokenId>, String> {
        match self {
            Self::Free | Self::Watched(_) => Ok(Vec::new()),
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

fn may_begin(matcher: &mut Matcher, model: &GrammarModel, rest: &[u8]) -> bool {
    if rest.is_empty() {
        return true;
    }
    let Some(tokens) = model.spelled(rest) else { return false };
    matcher.validate_tokens(&tokens).is_ok_and(|n_valid| n_valid == tokens.len())
}
