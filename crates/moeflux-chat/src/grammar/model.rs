//! The parts of a model that grammars need, built once: its vocabulary, llguidance's tables for it,
//! and the tokens that may complete a marker.
//!
//! **Invariant:** shared by all answers and never changed by them. This module is independent of a
//! request's rules.

use std::fmt;
use std::sync::Arc;

use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv};
use llguidance::{Logger, Matcher, ParserFactory};
use moeflux::{ModelText, TokenId};

use crate::calls::format::CallFormat;
use crate::grammar::marker::Marker;
use crate::grammar::problems::sentence;
use crate::grammar::vocabulary::Vocabulary;
use crate::thoughts::ThoughtFormat;

/// Maximum size of a grammar, in llguidance's symbols.
const GRAMMAR_SIZE_MAX: usize = 200_000;
/// Maximum number of lexer states, at 1 to 2 kB each.
pub(crate) const LEXER_STATES_MAX: usize = 50_000;
/// Limit on the work for the first tables of a grammar: about 20 ms.
const FIRST_FUEL: u64 = 1_000_000;
/// Limit on the work for one mask: about 15 ms.
const STEP_FUEL: u64 = 200_000;
/// Limit on the partial parses for one mask: about 2.5 ms.
const STEP_ITEMS_MAX: usize = 50_000;
/// Limit on the partial parses at one position in schemas and calls: four for each property that
/// may come next.
const ROW_ITEMS_MAX: usize = 2_000;
/// Limit on the partial parses at one position in grammars of clients, which may be arbitrarily
/// ambiguous. With 2,000 a grammar of one line takes up to 90 ms for a mask before it fails, with
/// 500 some 2 ms.
const CLIENTS_ROW_ITEMS_MAX: usize = 500;

/// The author of a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    /// Generated here from a schema or from tools.
    Ours,
    /// Written by a client.
    Client,
}

/// A model as seen by grammars.
pub(crate) struct GrammarModel {
    pub(crate) vocabulary: Arc<Vocabulary>,
    factory: ParserFactory,
    n_lexer_states: usize,
    pub(crate) thoughts: &'static ThoughtFormat,
    /// The marker that starts a thought.
    pub(crate) open: Arc<Marker>,
    /// The marker that ends a thought.
    pub(crate) close: Arc<Marker>,
    /// The marker that starts the calls of a turn, if the call format is known.
    pub(crate) opener: Option<Arc<Marker>>,
    /// Markers of other ways to start a call.
    pub(crate) other_openers: Vec<Arc<Marker>>,
    /// The last character before the arguments of calls without a marker.
    pub(crate) colon: Option<Arc<Marker>>,
}

impl fmt::Debug for GrammarModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Model");
        shown.field("vocabulary", &self.vocabulary).field("opener", &self.opener);
        shown.finish_non_exhaustive()
    }
}

impl GrammarModel {
    /// # Errors
    /// The reason why llguidance cannot use the vocabulary.
    pub(crate) fn new(
        text: Arc<ModelText>,
        thoughts: &'static ThoughtFormat,
        calls: Option<&CallFormat>,
    ) -> Result<Self, String> {
        let vocabulary = Arc::new(Vocabulary::new(text));
        let env: TokEnv = vocabulary.clone();
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, capabilities(), &slices)
            .map_err(|error| format!("the vocabulary cannot be used: {}", sentence(&error)))?;
        let marker = |text: &str| Arc::new(Marker::new(text, &vocabulary));
        let (open, close) = (marker(thoughts.open), marker(thoughts.close));
        let opener = calls.map(|it| marker(it.opener()));
        let other_openers =
            calls.into_iter().flat_map(|it| it.other_openers).map(|it| marker(it)).collect();
        let colon = calls.filter(|it| it.is_bare()).map(|_| marker(":"));
        let n_lexer_states = LEXER_STATES_MAX;
        Ok(Self {
            vocabulary,
            factory,
            n_lexer_states,
            thoughts,
            open,
            close,
            opener,
            other_openers,
            colon,
        })
    }

    /// Limits the number of lexer states.
    pub(crate) fn with_lexer_states(self, n_lexer_states: usize) -> Self {
        Self { n_lexer_states, ..self }
    }

    /// Creates a matcher at the start of a grammar.
    ///
    /// # Errors
    /// An error of one line about the grammar.
    pub(crate) fn matcher(
        &self,
        grammars: Vec<GrammarWithLexer>,
        author: Author,
    ) -> Result<Matcher, String> {
        let grammar = TopLevelGrammar { grammars, max_tokens: None };
        let parser = self.factory.create_parser_from_init_ext(
            GrammarInit::Serialized(grammar),
            Logger::new(0, 0),
            capabilities(),
            ParserLimits { max_lexer_states: self.n_lexer_states, ..limits(author) },
        );
        let parser = parser.map_err(|error| sentence(&error))?;
        let mut matcher = Matcher::new(Ok(parser));
        // Detects a grammar that allows nothing while it can still be refused.
        let problem = matcher.compute_mask().err();
        problem.map_or(Ok(matcher), |error| Err(sentence(&error)))
    }

    /// Returns tokens that spell some bytes, for a matcher that continues inside a token; `None` if
    /// there are none.
    pub(crate) fn spelled(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let trie = self.vocabulary.trie();
        let tokens = trie.greedy_tokenize(bytes);
        (trie.decode_raw(&tokens) == bytes).then_some(tokens)
    }
}

fn capabilities() -> InferenceCapabilities {
    InferenceCapabilities { ff_tokens: true, ..Default::default() }
}

fn limits(author: Author) -> ParserLimits {
    ParserLimits {
        max_items_in_row: match author {
            Author::Ours => ROW_ITEMS_MAX,
            Author::Client => CLIENTS_ROW_ITEMS_MAX,
        },
        initial_lexer_fuel: FIRST_FUEL,
        step_lexer_fuel: STEP_FUEL,
        step_max_items: STEP_ITEMS_MAX,
        max_lexer_states: LEXER_STATES_MAX,
        max_grammar_size: GRAMMAR_SIZE_MAX,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Forbids all tokens that a mask does not allow, including those beyond its end.
pub(crate) fn forbid_all_but(allowed: &SimpleVob, logits: &mut [f32]) {
    let words = allowed.as_slice();
    for (logits, word) in logits.chunks_mut(32).zip(words.iter().chain(std::iter::repeat(&0))) {
        if *word == 0 {
            logits.fill(f32::NEG_INFINITY);
        } else if *word != u32::MAX {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Forbids all tokens but one.
pub(crate) fn forbid_all_but_one(token: TokenId, logits: &mut [f32]) {
    let kept = logits.get(token.0 as usize).copied();
    logits.fill(f32::NEG_INFINITY);
    if let (Some(logit), Some(kept)) = (logits.get_mut(token.0 as usize), kept) {
        // The only allowed token needs a finite logit.
        *logit = kept.max(f32::MIN);
    }
}
