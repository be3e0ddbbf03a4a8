//! Conversations whose sessions were dropped, to report when one of them continues.
//!
//! **Invariant:** holds the length and a hash of each conversation, never its tokens.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use moeflux::TokenId;

use crate::job::{DropReason, Missed, Owner};

/// Number of conversations to remember.
const N_REMEMBERED: usize = 256;

/// Dropped conversations, oldest first.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    conversations: VecDeque<DroppedConversation>,
    counts: [u64; DropReason::ALL.len()],
}

/// A conversation whose session was dropped.
#[derive(Debug)]
struct DroppedConversation {
    owner: Owner,
    n_tokens: usize,
    hash: u64,
    reason: DropReason,
}

impl Dropped {
    /// Returns the number of drops since the last call, in the order of [`DropReason::ALL`].
    pub(super) fn take_counts(&mut self) -> [u64; DropReason::ALL.len()] {
        std::mem::take(&mut self.counts)
    }

    /// Records a dropped session. A prompt that begins with `tokens` continues it.
    pub(super) fn put(&mut self, owner: Owner, tokens: &[TokenId], reason: DropReason) {
        self.counts[reason as usize] += 1;
        let (n_tokens, hash) = (tokens.len(), hash_of(tokens));
        self.conversations.push_back(DroppedConversation { owner, n_tokens, hash, reason });
        if self.conversations.len() > N_REMEMBERED {
            self.conversations.pop_front();
        }
    }

    /// Removes and returns the longest conversation of an owner that a prompt continues, if it has
    /// at least `n_tokens_min` tokens.
    pub(super) fn take(
        &mut self,
        owner: Owner,
        prompt: &[TokenId],
        n_tokens_min: usize,
    ) -> Option<Missed> {
        let lengths = n_tokens_min..=prompt.len();
        let mut candidates: Vec<usize> = (0..self.conversations.len()).collect();
        candidates.retain(|idx| {
            let it = &self.conversations[*idx];
            it.owner == owner && lengths.contains(&it.n_tokens)
        });
        candidates.sort_by_key(|idx| self.conversations[*idx].n_tokens);
        let (mut hasher, mut n_hashed, mut found) = (DefaultHasher::new(), 0, None);
        for idx in candidates {
            let DroppedConversation { n_tokens, hash, .. } = self.conversations[idx];
            prompt[n_hashed..n_tokens].iter().for_each(|token| token.hash(&mut hasher));
            n_hashed = n_tokens;
            if hasher.finish() == hash {
                found = Some(idx);
            }
        }
        let DroppedConversation { n_tokens, reason, .. } = self.conversations.remove(found?)?;
        Some(Missed { n_tokens, reason })
    }
}

fn hash_of(tokens: &[TokenId]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.iter().for_each(|token| token.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n_tokens: u32, seed: u32) -> Vec<TokenId> {
        (0..n_tokens).map(|n| TokenId(n * 31 % 97 + seed)).collect()
    }

    #[test]
    fn the_longest_dropped_prefix_is_reported_once() {
        let mut dropped = Dropped::default();
        let prompt = tokens(200, 1);
        dropped.put(Owner(0), &prompt[..50], DropReason::Count);
        dropped.put(Owner(0), &prompt[..120], DropReason::Answers);
        dropped.put(Owner(0), &tokens(150, 2), DropReason::Bytes);
        dropped.put(Owner(1), &prompt[..180], DropReason::Experts);
        assert_eq!((dropped.take_counts(), dropped.take_counts()), ([1; 4], [0; 4]));
        assert_eq!(dropped.take(Owner(0), &prompt, 121), None);
        assert_eq!(dropped.take(Owner(0), &prompt[..119], 60), None);
        let missed = Missed { n_tokens: 120, reason: DropReason::Answers };
        assert_eq!(dropped.take(Owner(0), &prompt, 20), Some(missed));
        let missed = Missed { n_tokens: 50, reason: DropReason::Count };
        assert_eq!(dropped.take(Owner(0), &prompt, 20), Some(missed));
        assert_eq!(dropped.take(Owner(0), &prompt, 20), None);
    }

    #[test]
    fn dropped_conversations_are_bounded() {
        let mut dropped = Dropped::default();
        for seed in 0..1_000 {
            dropped.put(Owner(0), &tokens(20, seed), DropReason::Count);
        }
        assert_eq!(dropped.conversations.len(), N_REMEMBERED);
        assert_eq!(dropped.take(Owner(0), &tokens(20, 3), 1), None);
        assert!(dropped.take(Owner(0), &tokens(20, 999), 1).is_some());
    }
}
