//! What prompts find of their tokens in the conversations that are kept or saved.
//!
//! **Invariant:** pure. Each prompt that is looked up has one outcome, and an outcome says no more
//! than is known: a folder does not say what has left it.

use moeflux::TokenId;
use moeflux_prefix::Holding;

/// Two texts that share fewer tokens are not alike.
const N_ALIKE_MIN: usize = 8;

/// Upper bound on the tokens that are shown of each text where two part.
const N_SHOWN_MAX: usize = 16;

/// What a prompt found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptOutcome {
    /// It goes on from a session in memory.
    Memory,
    /// It goes on from what was loaded from a drive.
    Drive,
    /// What a drive has of it could not be used.
    Unusable,
    /// It continues a conversation whose session was dropped, and no drive has it.
    Dropped,
    /// It begins as a conversation in memory does, and then differs.
    Diverged,
    /// No conversation begins like it, and all that a drive has of its owner was saved with
    /// another model, arithmetic or version.
    OtherModel,
    /// No conversation begins like it.
    Nothing,
}

impl PromptOutcome {
    /// All outcomes.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::Drive,
        Self::Unusable,
        Self::Dropped,
        Self::Diverged,
        Self::OtherModel,
        Self::Nothing,
    ];

    /// Returns the name for counters and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Drive => "drive",
            Self::Unusable => "unusable",
            Self::Dropped => "dropped",
            Self::Diverged => "diverged",
            Self::OtherModel => "other_model",
            Self::Nothing => "nothing",
        }
    }

    /// Decides the outcome.
    pub(crate) fn of(facts: LookupFacts<'_>) -> Self {
        let LookupFacts { n_cached, n_loaded, is_missed, nearest, holding } = facts;
        let is_alike = nearest.is_some_and(|it| it.n_shared >= N_ALIKE_MIN);
        let is_continued = nearest.is_some_and(|it| it.is_continued);
        match n_loaded {
            Some(0) => Self::Unusable,
            Some(_) => Self::Drive,
            None if is_missed => Self::Dropped,
            None if is_alike && is_continued && n_cached >= N_ALIKE_MIN => Self::Memory,
            None if is_alike => Self::Diverged,
            None if holding == Holding::OtherOnly => Self::OtherModel,
            None => Self::Nothing,
        }
    }
}

/// What is known of a prompt that begins.
#[derive(Clone, Copy)]
pub(crate) struct LookupFacts<'n> {
    /// Tokens that need no computation.
    pub(crate) n_cached: usize,
    /// Tokens that were loaded; `None` if nothing was to be loaded.
    pub(crate) n_loaded: Option<usize>,
    /// Whether it continues a dropped session.
    pub(crate) is_missed: bool,
    pub(crate) nearest: Option<&'n NearestText>,
    /// What the drive has of its owner.
    pub(crate) holding: Holding,
}

/// How a prompt was looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptLookup {
    /// What it found.
    pub outcome: PromptOutcome,
    /// Tokens that it shares with the conversation in memory that is most like it.
    pub n_shared: usize,
    /// Tokens of that conversation; 0 without one.
    pub n_nearest: usize,
    /// Set for the last of several long prompts in a row that found almost nothing.
    pub row: Option<Box<MissRow>>,
}

/// Long prompts in a row that found almost nothing, and the one of them that shares most with a
/// conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissRow {
    /// Number of prompts.
    pub n_prompts: usize,
    /// Tokens that the prompt shares with that conversation.
    pub n_shared: usize,
    /// The next tokens of the conversation.
    pub kept: Vec<TokenId>,
    /// The next tokens of the prompt.
    pub prompt: Vec<TokenId>,
}

/// The conversation in memory that shares most with a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NearestText {
    pub(crate) n_shared: usize,
    pub(crate) n_tokens: usize,
    /// Whether the prompt continues it, or repeats its beginning.
    pub(crate) is_continued: bool,
    /// The first tokens after those that both share.
    pub(crate) kept: Vec<TokenId>,
    pub(crate) prompt: Vec<TokenId>,
}

impl NearestText {
    /// Compares texts, each with the number of tokens from which on a prompt continues it. Of
    /// equals, returns one that the prompt continues.
    pub(crate) fn of<'t, I>(texts: I, prompt: &[TokenId]) -> Option<Self>
    where
        I: Iterator<Item = (&'t [TokenId], usize)>,
    {
        let compared = texts.map(|(text, continues_from)| {
            let n_shared = text.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            let is_repeated = n_shared + 1 >= prompt.len();
            (n_shared, is_repeated || n_shared >= continues_from.min(text.len()), text)
        });
        let (n_shared, is_continued, text) = compared.max_by_key(|it| (it.0, it.1))?;
        let next =
            |tokens: &[TokenId]| tokens[n_shared..].iter().take(N_SHOWN_MAX).copied().collect();
        let (kept, prompt) = (next(text), next(prompt));
        Some(Self { n_shared, n_tokens: text.len(), is_continued, kept, prompt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(numbers: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        numbers.into_iter().map(TokenId).collect()
    }

    fn nearest(texts: &[(&[TokenId], usize)], prompt: &[TokenId]) -> Option<NearestText> {
        NearestText::of(texts.iter().copied(), prompt)
    }

    #[test]
    fn the_nearest_text_shares_most_and_is_continued_if_one_is() {
        let prompt = tokens(0..40);
        assert_eq!(nearest(&[], &prompt), None);
        let (other, long) = (tokens(100..140), tokens((0..12).chain(200..260)));
        let found = nearest(&[(&other, 40), (&long, 60)], &prompt).unwrap();
        assert_eq!((found.n_shared, found.n_tokens, found.is_continued), (12, 72, false));
        assert_eq!((found.kept, found.prompt), (tokens(200..216), tokens(12..28)));
        let whole = tokens(0..12);
        for texts in [[(&*long, 60), (&*whole, 12)], [(&*whole, 12), (&*long, 60)]] {
            let found = nearest(&texts, &prompt).unwrap();
            assert_eq!((found.n_tokens, found.is_continued), (12, true));
            assert_eq!(found.kept, []);
        }
        assert!(nearest(&[(&long, 12)], &prompt).unwrap().is_continued, "from its split point");
        let longer = tokens((0..39).chain(7..90));
        assert!(nearest(&[(&longer, 100)], &prompt).unwrap().is_continued, "asked again");
    }

    #[test]
    fn a_prompt_has_one_outcome() {
        let prompt = tokens(0..40);
        let continued = nearest(&[(&prompt[..30], 30)], &prompt);
        let diverged = nearest(&[(&tokens((0..20).chain(90..150)), 60)], &prompt);
        let unlike = nearest(&[(&tokens((0..7).chain(90..150)), 60)], &prompt);
        let none = LookupFacts {
            n_cached: 0,
            n_loaded: None,
            is_missed: false,
            nearest: None,
            holding: Holding::Nothing,
        };
        let check = |facts: LookupFacts<'_>, nearest: &Option<NearestText>, expected| {
            let facts = LookupFacts { nearest: nearest.as_ref(), ..facts };
            assert_eq!(PromptOutcome::of(facts), expected);
        };
        let cached = LookupFacts { n_cached: 20, ..none };
        check(cached, &continued, PromptOutcome::Memory);
        // Without a state to go back to, a continued text is of no use.
        check(none, &continued, PromptOutcome::Diverged);
        check(cached, &diverged, PromptOutcome::Diverged);
        check(none, &unlike, PromptOutcome::Nothing);
        check(none, &None, PromptOutcome::Nothing);
        let others = LookupFacts { holding: Holding::OtherOnly, ..none };
        check(others, &unlike, PromptOutcome::OtherModel);
        check(LookupFacts { n_cached: 20, ..others }, &diverged, PromptOutcome::Diverged);
        check(LookupFacts { holding: Holding::Objects, ..none }, &None, PromptOutcome::Nothing);
        check(LookupFacts { is_missed: true, ..cached }, &diverged, PromptOutcome::Dropped);
        check(LookupFacts { n_loaded: Some(9), ..cached }, &diverged, PromptOutcome::Drive);
        check(LookupFacts { n_loaded: Some(0), ..cached }, &continued, PromptOutcome::Unusable);
    }

    #[test]
    fn outcomes_are_counted_by_their_place() {
        for (idx, outcome) in PromptOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, idx);
        }
    }
}
