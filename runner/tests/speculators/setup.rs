//! Random models of an architecture, loaded once, with every draft for them.

use std::sync::Arc;

use kernels::backend::Backend;
use kernels::cpu::{Cpu, CpuConfig};
use runner::cache::{CacheConfig, CacheTypes};
use runner::context::{Context, ContextConfig};
use runner::model::{
    Fusion, Model, load_assistant, load_block_draft, load_eagle3, load_mtp_head, load_target,
};
use runner::sample::{SampleConfig, Sampler};
use runner::speculate::{
    AssistantDraft, BlockDrafter, Completion, DecodeConfig, DraftLimits, DraftModel, Driver,
    NgramCache, NgramMapConfig, NgramMaps, NgramMod, NgramModConfig, NgramSimple, Policy, Proof,
    Request, SpecType, Speculator, Stop, TextConfig, TranslatedDraft, Values, eagle3, mtp,
};
use schemas::arch::Hparams;
use schemas::gguf::Plan;
use schemas::vocab::{Translation, VocabMap, Vocabulary};

pub(crate) type Drafters<B = Cpu> = Vec<Box<dyn Speculator<B>>>;

pub(crate) const N_CTX: usize = 160;
/// Number of tokens to generate in tests without longer drafts.
pub(crate) const N_PREDICT: usize = 20;

/// The speculators under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    NgramSimple,
    NgramMapK,
    NgramMapK4v,
    NgramMod,
    NgramCache,
    /// A small draft model.
    Simple,
    /// The target itself as draft model, which is always right.
    Itself,
    /// A small draft model with another vocabulary.
    Translated,
    Mtp,
    /// Two assistants: with all tokens, and with those of some clusters.
    Assistant(usize),
    /// Two drafts: with a reduced output head, and with tensors borrowed from the target.
    Eagle3(usize),
    /// A DFlash draft with a window and a reduced output head.
    Dflash,
    /// A DSpark draft with tensors borrowed from the target.
    Dspark,
    /// A DFlash2 draft with tensors borrowed from the target.
    Dflash2,
}

impl Kind {
    /// Returns the type under which its drafts are counted.
    pub(crate) fn spec_type(self) -> SpecType {
        match self {
            Kind::NgramSimple => SpecType::NgramSimple,
            Kind::NgramMapK => SpecType::NgramMapK,
            Kind::NgramMapK4v => SpecType::NgramMapK4v,
            Kind::NgramMod => SpecType::NgramMod,
            Kind::NgramCache => SpecType::NgramCache,
            Kind::Simple | Kind::Itself | Kind::Translated => SpecType::DraftSimple,
            Kind::Mtp | Kind::Assistant(_) => SpecType::DraftMtp,
            Kind::Eagle3(_) => SpecType::DraftEagle3,
            Kind::Dflash | Kind::Dflash2 => SpecType::DraftDflash,
            Kind::Dspark => SpecType::DraftDspark,
        }
    }
}

/// A draft that reads several hidden states, and its fusion.
type Draft<B> = (Arc<Model<B>>, Arc<Fusion<B>>);

/// A random model of an architecture, and its drafts.
pub(crate) struct Family<B: Backend = Cpu> {
    pub(crate) plan: Plan,
    pub(crate) backend: Arc<B>,
    /// Positions of each sequence.
    pub(crate) n_ctx: usize,
    /// Element types of all caches.
    pub(crate) types: CacheTypes,
    target: Arc<Model<B>>,
    small: Arc<Model<B>>,
    head: Option<Arc<Model<B>>>,
    assistants: Vec<Arc<Model<B>>>,
    eagle3: Vec<Draft<B>>,
    blocks: Vec<Draft<B>>,
    /// Layers of the target that the drafts read, in the order of `eagle3` and `blocks`.
    layers: Vec<Vec<u32>>,
}

impl Family {
    /// Returns one family per architecture.
    pub(crate) fn all() -> impl Iterator<Item = Family> {
        fixtures::all().map(Family::of)
    }

    pub(crate) fn of(plan: Plan) -> Family {
        // Other tests show that threads change nothing.
        let config = CpuConfig {
            threads: 1,
            ..CpuConfig::default()
        };
        Family::on(Arc::new(Cpu::new(config).unwrap()), plan)
    }
}

impl<B: Backend> Family<B> {
    /// Loads the models on a device.
    pub(crate) fn on(backend: Arc<B>, plan: Plan) -> Family<B> {
        let mut family = Family::without_taps(backend, plan);
        let mut taps: Vec<u32> = family.layers.concat();
        taps.sort_unstable();
        taps.dedup();
        family.set_taps(taps);
        family
    }

    /// Lets the target keep the inputs of these layers.
    fn set_taps(&mut self, taps: Vec<u32>) {
        let target = Arc::get_mut(&mut self.target);
        target.expect("no context shares the target yet").taps = taps;
    }

    /// Lets the target keep the inputs of the layers that this draft reads, and of no other ones.
    pub(crate) fn tap_only_for(&mut self, kind: Kind) {
        let i = match kind {
            Kind::Eagle3(i) => i,
            Kind::Dflash => 2,
            Kind::Dspark => 3,
            Kind::Dflash2 => 4,
            _ => panic!("{kind:?} reads no layers"),
        };
        self.set_taps(self.layers[i].clone());
    }

    fn without_taps(backend: Arc<B>, plan: Plan) -> Family<B> {
        let target = load_target(&*backend, &plan).unwrap();
        let small = fixtures::all().next().unwrap();
        let (eagle3, blocks) = (fixtures::eagle3(&plan), fixtures::block_drafts(&plan));
        let layers = eagle3.iter().chain(&blocks);
        let layers = layers.map(fixtures::layers_read).collect();
        let eagle3 = eagle3.map(|draft| {
            let (model, fusion) = load_eagle3(&*backend, &draft, &plan).unwrap();
            (Arc::new(model), Arc::new(fusion))
        });
        let blocks = blocks.map(|draft| {
            let (model, fusion) = load_block_draft(&*backend, &draft, &plan).unwrap();
            (Arc::new(model), Arc::new(fusion))
        });
        let assistants = fixtures::assistants(&plan);
        let assistants = assistants.iter().map(|assistant| {
            let model = load_assistant(&*backend, assistant, &plan).unwrap();
            Arc::new(model)
        });
        Family {
            assistants: assistants.collect(),
            blocks: blocks.into_iter().collect(),
            layers,
            target: Arc::new(target),
            small: Arc::new(load_target(&*backend, &small).unwrap()),
            head: load_mtp_head(&*backend, &plan).ok().map(Arc::new),
            eagle3: eagle3.into_iter().collect(),
            n_ctx: N_CTX,
            types: CacheTypes::default(),
            backend,
            plan,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.plan.metadata.need_str("general.architecture").unwrap()
    }

    pub(crate) fn hparams(&self) -> Hparams {
        Hparams::from_plan(&self.plan).unwrap()
    }

    /// Returns all speculators for the model.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![
            Kind::NgramSimple,
            Kind::NgramMapK,
            Kind::NgramMapK4v,
            Kind::NgramMod,
            Kind::NgramCache,
            Kind::Simple,
            Kind::Itself,
            Kind::Translated,
            Kind::Eagle3(0),
            Kind::Eagle3(1),
            Kind::Dflash,
            Kind::Dspark,
            Kind::Dflash2,
        ];
        kinds.extend(self.head.as_ref().map(|_| Kind::Mtp));
        kinds.extend((0..self.assistants.len()).map(Kind::Assistant));
        kinds
    }

    fn context(&self, model: &Arc<Model<B>>, n_seq: usize, n_rollback: usize) -> Context<B> {
        // A block may extend past the end of a text.
        let n_more = model.block().map_or(0, |block| block.size as usize);
        let cache = CacheConfig {
            n_seq,
            n_ctx: self.n_ctx + n_more,
            n_rollback,
            types: self.types,
        };
        let n_outputs = n_seq * 65;
        let sizes = ContextConfig {
            cache,
            n_batch: n_outputs,
            n_outputs,
        };
        Context::new(Arc::clone(&self.backend), Arc::clone(model), sizes).unwrap()
    }

    /// Creates a speculator with drafts of up to `n_max` tokens, for `n_seq` sequences.
    pub(crate) fn speculator(
        &self,
        kind: Kind,
        n_seq: usize,
        n_max: usize,
    ) -> Box<dyn Speculator<B>> {
        let size = |n: usize| n.try_into().unwrap();
        let chain = DraftLimits::of_length(n_max);
        // Few states are kept, so that draft models rerun tokens too.
        let context = |model| self.context(model, n_seq, n_max.min(2));
        let map = |values| -> Box<dyn Speculator<B>> {
            let (n, m) = (size(2), size(n_max));
            Box::new(NgramMaps::new(
                kind.spec_type(),
                NgramMapConfig { n, m, values },
                n_seq,
            ))
        };
        match kind {
            Kind::NgramSimple => Box::new(NgramSimple {
                n: size(2),
                m: size(n_max.max(2)),
            }),
            Kind::NgramMapK => map(Values::Latest),
            Kind::NgramMapK4v => map(Values::Counted { min_hits: 1 }),
            Kind::NgramMod => {
                let config = NgramModConfig {
                    n: size(2),
                    n_min: 1,
                    n_max,
                };
                Box::new(NgramMod::new(config, n_seq))
            }
            Kind::NgramCache => Box::new(NgramCache::new(Arc::default(), n_seq)),
            Kind::Simple => Box::new(DraftModel::new(context(&self.small), chain)),
            Kind::Itself => Box::new(DraftModel::new(context(&self.target), chain)),
            Kind::Translated => {
                let map = vocab_map(|token| vec![token; (token % 3) as usize]);
                Box::new(TranslatedDraft::new(context(&self.small), map, chain))
            }
            Kind::Mtp => {
                let head = self.head.as_ref().unwrap();
                Box::new(mtp(context(head), chain))
            }
            Kind::Assistant(i) => {
                let assistant = context(&self.assistants[i]);
                Box::new(AssistantDraft::new(SpecType::DraftMtp, assistant, chain))
            }
            Kind::Eagle3(i) => {
                let (model, fusion) = &self.eagle3[i];
                Box::new(eagle3(context(model), Arc::clone(fusion), chain))
            }
            Kind::Dflash | Kind::Dspark | Kind::Dflash2 => {
                let (model, fusion) = match kind {
                    Kind::Dflash => &self.blocks[0],
                    Kind::Dspark => &self.blocks[1],
                    _ => &self.blocks[2],
                };
                let (kind, fusion) = (kind.spec_type(), Arc::clone(fusion));
                Box::new(BlockDrafter::new(kind, context(model), fusion, chain))
            }
        }
    }

    /// Creates a translated draft of the target itself with an identity map.
    pub(crate) fn itself_mapped(&self, n_seq: usize, n_max: usize) -> Box<dyn Speculator<B>> {
        let map = vocab_map(|token| vec![token]);
        let context = self.context(&self.target, n_seq, 1);
        let chain = DraftLimits::of_length(n_max);
        Box::new(TranslatedDraft::new(context, map, chain))
    }

    /// Creates a driver that keeps `n_rollback` states; longer rollbacks rerun tokens.
    pub(crate) fn driver(
        &self,
        drafters: Drafters<B>,
        policy: Policy,
        n_seq: usize,
        n_rollback: usize,
    ) -> Driver<B> {
        let target = self.context(&self.target, n_seq, n_rollback);
        Driver::new(target, drafters, policy)
    }

    pub(crate) fn decode(
        &self,
        drafters: Drafters<B>,
        n_seq: usize,
        n_rollback: usize,
        temperature: f32,
    ) -> Vec<Completion> {
        let mut driver = self.driver(drafters, Policy::First, n_seq, n_rollback);
        decode(&mut driver, &requests(N_PREDICT), temperature)
    }
}

/// Decodes each text for `n_rounds` rounds, every other one for one more, so that they do not all
/// start and end together.
pub(crate) fn decode_for(
    n_rounds: usize,
    driver: &mut Driver<Cpu>,
    requests: &[Request],
    config: &mut DecodeConfig<'_>,
) -> Vec<Completion> {
    let n_seq = driver.target().config().cache.n_seq;
    let mut next = 0..requests.len();
    // The text of each sequence, and its remaining rounds.
    let mut writing: Vec<Option<(usize, usize)>> = vec![None; n_seq];
    let mut done = vec![Completion::default(); requests.len()];
    loop {
        for (seq, text) in writing.iter_mut().enumerate() {
            if text.is_none() {
                *text = next.next().map(|i| (i, n_rounds + i % 2));
                if let Some((i, _)) = *text {
                    driver.join(seq, i, &requests[i], config).unwrap();
                }
            }
        }
        if writing.iter().all(Option::is_none) {
            return done;
        }
        driver.round(config).unwrap();
        for (seq, text) in writing.iter_mut().enumerate() {
            let Some((i, left)) = text else { continue };
            *left -= 1;
            if *left == 0 || driver.left(seq) == 0 {
                done[*i] = driver.leave(seq).unwrap();
                *text = None;
            }
        }
    }
}

/// Decodes all requests; panics on errors.
pub(crate) fn decode<B: Backend>(
    driver: &mut Driver<B>,
    requests: &[Request],
    temperature: f32,
) -> Vec<Completion> {
    ending(temperature, |config| {
        driver.decode(requests, config).unwrap().0
    })
}

/// Calls `act` with a configuration in which EOS ends a text.
pub(crate) fn ending<T>(temperature: f32, act: impl FnOnce(&mut DecodeConfig<'_>) -> T) -> T {
    with(&|token| token == fixtures::EOS, temperature, act)
}

/// Calls `act` with a configuration in which no token ends a text.
pub(crate) fn endless<T>(temperature: f32, act: impl FnOnce(&mut DecodeConfig<'_>) -> T) -> T {
    with(&|_| false, temperature, act)
}

fn with<T>(
    is_end: &dyn Fn(u32) -> bool,
    temperature: f32,
    act: impl FnOnce(&mut DecodeConfig<'_>) -> T,
) -> T {
    let text = TextConfig::new(Sampler::new(SampleConfig::at(temperature, 5)).unwrap());
    act(&mut DecodeConfig {
        on_failure: Some(&mut |failure| panic!("{failure:?}")),
        ..DecodeConfig::new(text.with_proof(Proof::Logits), is_end)
    })
}

/// Returns prompts of different lengths; the first repeats itself.
pub(crate) fn requests(n_predict: usize) -> Vec<Request> {
    let text = |seed: u32, len: u32| (0..len).map(|i| (i % 17 * seed) % 251).collect();
    [(3, 50), (7, 5), (11, 21), (19, 1), (23, 33)]
        .iter()
        .map(|&(seed, len)| request(text(seed, len), n_predict))
        .collect()
}

pub(crate) fn request(tokens: Vec<u32>, n_predict: usize) -> Request {
    Request::new(format!("of {} tokens", tokens.len()), tokens, n_predict)
}

pub(crate) fn assert_same(name: &str, plain: &[Completion], drafted: &[Completion]) {
    assert_eq!(plain.len(), drafted.len());
    for (i, (plain, drafted)) in plain.iter().zip(drafted).enumerate() {
        assert_eq!(plain.tokens, drafted.tokens, "{name}: tokens of prompt {i}");
        assert_eq!(plain.hashes, drafted.hashes, "{name}: logits of prompt {i}");
        assert_eq!(plain.stop, drafted.stop, "{name}: end of prompt {i}");
    }
}

/// Checks that each text is a prefix of the plain one, or all of it if it ended.
pub(crate) fn assert_begins(name: &str, plain: &[Completion], drafted: &[Completion]) {
    for (i, (plain, drafted)) in plain.iter().zip(drafted).enumerate() {
        let n = match drafted.stop {
            Stop::EndOfText => plain.tokens.len(),
            _ => drafted.tokens.len(),
        };
        assert!(n > 0, "{name}: prompt {i}");
        let (tokens, hashes) = (&plain.tokens[..n], &plain.hashes[..n]);
        assert_eq!(tokens, drafted.tokens, "{name}: tokens of prompt {i}");
        assert_eq!(hashes, drafted.hashes, "{name}: logits of prompt {i}");
    }
}

/// Returns a map between equal vocabularies; `sequence` maps each target token to any number of
/// draft tokens.
fn vocab_map(sequence: impl Fn(u32) -> Vec<u32>) -> VocabMap {
    let side = || Vocabulary {
        n_tokens: fixtures::N_VOCAB as u32,
        sha256: String::new(),
    };
    let tokens = || 0..fixtures::N_VOCAB as u32;
    VocabMap {
        target: side(),
        draft: side(),
        target_to_draft: Translation::new(tokens().map(sequence)),
        draft_to_target: Translation::new(tokens().map(|token| vec![token])),
    }
}
