//! Feeds windows to a session, and passes on the logits before each predicted token.

use std::ops::{ControlFlow, Range};

use moeflux::provider::forward::StepProgress;
use moeflux::step::Wanted;
use moeflux::{Result, Session, TokenId};

use crate::commands::eval::scores::NextToken;
use crate::output::progress::{Bar, tokens_done};
use crate::system::interrupt::Interrupt;

/// Receives a predicted token and the logits before it.
pub(crate) type OnLogits<'a> = dyn FnMut(NextToken, &[f32]) -> Result<()> + 'a;

/// A session that reads windows, and the progress over all of them.
pub(crate) struct WindowFeeder<'a> {
    pub(crate) session: Session,
    /// `None` if another session shows the progress.
    pub(crate) bar: Option<Bar>,
    pub(crate) n_done: u64,
    pub(crate) interrupt: &'a Interrupt,
}

/// Tokens of a window that are fed together.
#[derive(Clone, Debug)]
pub(crate) struct WindowPart<'a> {
    pub(crate) window: &'a [TokenId],
    pub(crate) range: Range<usize>,
    /// Index of the first predicted token of the window.
    pub(crate) first_predicted: usize,
}

impl<'a> WindowPart<'a> {
    /// All tokens of a window.
    pub(crate) fn whole(window: &'a [TokenId], first_predicted: usize) -> Self {
        Self { window, range: 0..window.len(), first_predicted }
    }
}

impl WindowFeeder<'_> {
    /// Counts tokens that need not be fed.
    pub(crate) fn skip(&mut self, n_tokens: usize) {
        self.n_done += n_tokens as u64;
    }

    /// Feeds a part of a window; the part at its start begins anew.
    pub(crate) fn feed(
        &mut self,
        part: WindowPart<'_>,
        on_logits: &mut OnLogits<'_>,
    ) -> Result<()> {
        let Self { session, bar, n_done, interrupt } = self;
        let WindowPart { window, range, first_predicted } = part;
        if range.start == 0 {
            session.clear();
        }
        let watch = &mut |progress: StepProgress| -> ControlFlow<()> {
            if let Some(bar) = bar {
                bar.set(*n_done + tokens_done(progress));
            }
            interrupt.poll()
        };
        let mut position = range.start;
        session.feed(&window[range.clone()], Wanted::All, watch, &mut |_, logits| {
            // A token's logits predict the next one.
            position += 1;
            match window.get(position) {
                Some(token) if position >= first_predicted => {
                    on_logits(NextToken { position, token: *token }, logits)
                }
                _ => Ok(()),
            }
        })?;
        *n_done += range.len() as u64;
        Ok(())
    }
}
