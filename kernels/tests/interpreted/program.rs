//! Parsed PTX: every operand is a register or an address.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::arithmetic::{Lanes, Map, Rule, arithmetic};
use super::memory::WARP;

/// Index of a register.
pub(super) type Register = usize;

/// A kernel.
pub(super) struct Program {
    pub(super) instructions: Vec<Instruction>,
    /// Number of registers.
    pub(super) n_register: usize,
    /// Initial values of the registers that hold constants.
    pub(super) constants: Vec<(Register, u64)>,
    /// Registers with special values, by names such as `%tid.x`.
    pub(super) specials: Vec<(String, Register)>,
    /// Bytes of arguments.
    pub(super) param_bytes: usize,
    /// Static shared memory of a block, in bytes.
    pub(super) shared_bytes: usize,
    /// Local memory of a thread, in bytes.
    pub(super) local_bytes: usize,
    /// Maximum number of threads per block.
    pub(super) most_threads: u32,
    /// Constants of the module in global memory, from address [`TABLES`].
    pub(super) tables: Arc<Constants>,
}

/// Tables in the constants of a module.
#[derive(Clone, Default)]
pub(super) struct Constants {
    bytes: Vec<u8>,
    tables: Vec<Range<u64>>,
}

impl Constants {
    /// Returns the bytes at those offsets, if they are in one table.
    pub(super) fn get(&self, range: Range<u64>) -> Option<&[u8]> {
        let around = |table: &&Range<u64>| table.start <= range.start && range.end <= table.end;
        self.tables.iter().find(around)?;
        self.bytes.get(range.start as usize..range.end as usize)
    }
}

/// Address of the first constant of a module.
pub(super) const TABLES: u64 = 1 << 56;

pub(super) struct Instruction {
    /// Executes only in lanes where the predicate has that value.
    pub(super) guard: Option<(Register, bool)>,
    pub(super) operation: Operation,
    pub(super) text: String,
}

pub(super) enum Operation {
    Map {
        map: Map,
        rule: Rule,
        to: Register,
        from: [Register; 4],
    },
    /// Combines halves of words.
    Pack {
        to: Register,
        from: Vec<Register>,
    },
    Load {
        space: Space,
        element: Element,
        to: Vec<Register>,
        from: Place,
    },
    Store {
        space: Space,
        element: Element,
        to: Place,
        from: Vec<Register>,
    },
    /// Converts to a generic address.
    Generic {
        to: Register,
        from: Register,
    },
    Branch(usize),
    Return,
    Barrier,
    WarpBarrier {
        members: Register,
    },
    Shuffle {
        how: Shuffle,
        to: Register,
        /// Predicate that is set if the source lane is in the segment.
        is_within: Option<Register>,
        /// The value, the lane, the segment, and the participating lanes.
        from: [Register; 4],
    },
    Products {
        to: [Register; 4],
        a: Vec<Register>,
        b: Vec<Register>,
        c: [Register; 4],
    },
    BeginCopy {
        to: Place,
        from: Place,
        bytes: usize,
    },
    EndGroup,
    /// Waits until at most that many groups are incomplete.
    WaitForGroups(usize),
    /// An instruction without observable effect.
    Hint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    Index,
    Butterfly,
}

/// Memory space of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// Element type in memory.
#[derive(Clone, Copy)]
pub(super) struct Element {
    pub(super) bytes: usize,
    pub(super) is_signed: bool,
}

impl Element {
    /// Converts bytes in memory to the contents of a register.
    pub(super) fn extended(self, bytes: &[u8]) -> u64 {
        let mut long = [0; 8];
        long[..bytes.len()].copy_from_slice(bytes);
        let shift = 64 - 8 * bytes.len() as u32;
        let value = u64::from_le_bytes(long) << shift;
        match self.is_signed {
            true => (value as i64 >> shift) as u64,
            false => value >> shift,
        }
    }
}

/// An address: a register and an offset in bytes.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) base: Register,
    pub(super) offset: u64,
}

/// Parses all kernels of a text, by name.
pub(super) fn parse(text: &str) -> HashMap<String, Program> {
    let text = without_comments(text);
    let mut rest = text.as_str();
    let mut shared = Symbols::default();
    let mut tables = Tables::default();
    let mut programs = HashMap::new();
    while let Some(start) = rest.find(['.', ';']) {
        rest = &rest[start..];
        if rest.starts_with(".visible .entry") {
            let (open, end) = (rest.find('{').unwrap_or(0), rest.find("\n}").unwrap_or(0));
            assert!(0 < open && open < end, "a kernel without a body");
            let (name, program) = kernel(&rest[..open], &rest[open + 1..end], &shared, &tables);
            programs.insert(name, program);
            rest = &rest[end + 2..];
            continue;
        }
        // Lines of module directives have no semicolon.
        let is_line = [".version", ".target", ".address_size"].map(|word| rest.starts_with(word));
        let end = rest.find(if is_line.contains(&true) { '\n' } else { ';' });
        let (statement, behind) = rest.split_at(end.unwrap_or(rest.len()));
        if statement.contains(".shared") {
            shared.declare(statement);
        }
        if let Some((declaration, values)) = statement.split_once('=')
            && declaration.starts_with(".global")
        {
            tables.declare(declaration, values);
        }
        rest = behind.get(1..).unwrap_or_default();
    }
    programs
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once("//") {
        Some((code, _)) => code,
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Names of addresses in a memory space.
#[derive(Clone, Default)]
struct Symbols {
    offsets: HashMap<String, u64>,
    bytes: usize,
    /// The dynamically sized array after all others.
    given: Option<String>,
}

impl Symbols {
    /// Parses `.shared .align 4 .b8 name[64]`; without a size the array is sized by the launch.
    fn declare(&mut self, statement: &str) {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let of = |word: &str| words.iter().position(|w| *w == word);
        let align = of(".align").map_or(1, |at| number(words[at + 1]) as usize);
        let (element, name) = (words[words.len() - 2], words[words.len() - 1]);
        let (name, n) = match name.split_once('[') {
            Some((name, n)) => (name, n.trim_end_matches(']')),
            None => (name, "1"),
        };
        if n.is_empty() {
            self.given = Some(name.to_owned());
            return;
        }
        let n = number(n) as usize;
        self.bytes = self.bytes.next_multiple_of(align);
        self.offsets.insert(name.to_owned(), self.bytes as u64);
        self.bytes += n * element_of(element).bytes;
    }
}

/// Constants in global memory.
#[derive(Default)]
struct Tables {
    symbols: Symbols,
    constants: Arc<Constants>,
}

impl Tables {
    /// Parses `.global .align 2 .u16 name[2]` and `{1, 2}`.
    fn declare(&mut self, declaration: &str, values: &str) {
        let element = declaration.split_whitespace().rev().nth(1);
        let element = element_of(element.expect("a type")).bytes;
        let start = self.symbols.bytes;
        self.symbols.declare(declaration);
        // At a multiple of the size, so that undefined bits of an index stay undefined bits of the address.
        let bytes = self.symbols.bytes - start;
        let size = bytes.next_power_of_two();
        let first = start.next_multiple_of(size);
        self.symbols.bytes = first + size;
        let name = declaration.split_whitespace().last().unwrap_or_default();
        let name = name.split('[').next().unwrap_or_default().to_owned();
        self.symbols.offsets.insert(name, first as u64);
        let values = values.trim().trim_start_matches('{').trim_end_matches('}');
        let values = values.split(',').map(|value| number(value).to_le_bytes());
        let values: Vec<u8> = values
            .flat_map(|value| value.into_iter().take(element))
            .collect();
        // Zeros at the end are not listed.
        assert!(values.len() <= bytes);
        let constants = Arc::make_mut(&mut self.constants);
        constants.tables.push(first as u64..(first + bytes) as u64);
        constants.bytes.resize(self.symbols.bytes, 0);
        constants.bytes[first..first + values.len()].copy_from_slice(&values);
    }
}

fn kernel(head: &str, body: &str, shared: &Symbols, tables: &Tables) -> (String, Program) {
    let name = head.trim_start_matches(".visible .entry").trim_start();
    let name = name.split('(').next().unwrap_or_default().to_owned();
    let params = head.split(['(', ')']).nth(1).unwrap_or_default();
    let mut own = Symbols::default();
    for param in params.split(',').filter(|param| !param.trim().is_empty()) {
        own.declare(param);
    }
    let most_threads = head.split(".maxntid").nth(1).map_or(1024, |rest| {
        number(rest.split(',').next().unwrap_or_default()) as u32
    });
    let mut maker = Maker {
        registers: HashMap::new(),
        constants: HashMap::new(),
        n_register: 0,
        symbols: own.offsets.clone(),
        labels: HashMap::new(),
    };
    let mut shared = shared.clone();
    let mut local = Symbols::default();
    let statements = statements(body);
    let mut instructions = Vec::new();
    for statement in &statements {
        match statement {
            Statement::Label(label) => {
                maker.labels.insert((*label).to_owned(), instructions.len());
            }
            Statement::Other(text) if text.starts_with(".shared") => shared.declare(text),
            Statement::Other(text) if text.starts_with(".local") => local.declare(text),
            Statement::Other(text) if text.starts_with('.') => {}
            Statement::Other(text) => instructions.push(*text),
        }
    }
    let shared_bytes = shared.bytes.next_multiple_of(16);
    let given = shared.given.map(|name| (name, shared_bytes as u64));
    maker
        .symbols
        .extend(shared.offsets.into_iter().chain(given));
    maker.symbols.extend(local.offsets);
    let addresses = tables.symbols.offsets.iter();
    let addresses = addresses.map(|(name, offset)| (name.clone(), TABLES + offset));
    maker.symbols.extend(addresses);
    let instructions = instructions
        .into_iter()
        .map(|text| maker.instruction(text))
        .collect();
    let specials = maker
        .registers
        .iter()
        .filter(|(name, _)| name.contains("id."));
    let program = Program {
        instructions,
        specials: specials
            .map(|(name, &register)| (name.clone(), register))
            .collect(),
        constants: maker
            .constants
            .iter()
            .map(|(&value, &register)| (register, value))
            .collect(),
        n_register: maker.n_register,
        param_bytes: own.bytes,
        shared_bytes,
        local_bytes: local.bytes,
        most_threads,
        tables: Arc::clone(&tables.constants),
    };
    (name, program)
}

enum Statement<'t> {
    Label(&'t str),
    Other(&'t str),
}

/// Splits a body at semicolons; braces around statements are ignored.
fn statements(body: &str) -> Vec<Statement<'_>> {
    let mut found = Vec::new();
    let mut rest = body;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || "{};".contains(c));
        if rest.is_empty() {
            return found;
        }
        let end = rest.find([';', ':']).unwrap_or(rest.len());
        let text = rest[..end].trim();
        let is_label = rest[end..].starts_with(':');
        found.push(if is_label {
            Statement::Label(text)
        } else {
            Statement::Other(text)
        });
        rest = rest.get(end + 1..).unwrap_or_default();
    }
}

/// Translates statements to instructions.
struct Maker {
    registers: HashMap<String, Register>,
    constants: HashMap<u64, Register>,
    n_register: usize,
    symbols: HashMap<String, u64>,
    labels: HashMap<String, usize>,
}

impl Maker {
    fn new_register(&mut self) -> Register {
        self.n_register += 1;
        self.n_register - 1
    }

    fn constant(&mut self, value: u64) -> Register {
        if let Some(&register) = self.constants.get(&value) {
            return register;
        }
        let register = self.new_register();
        self.constants.insert(value, register);
        register
    }

    /// Parses a register, a number, or a name.
    fn operand(&mut self, text: &str) -> Register {
        if let Some(&register) = self.registers.get(text) {
            return register;
        }
        if text.starts_with('%') {
            let register = self.new_register();
            self.registers.insert(text.to_owned(), register);
            return register;
        }
        let value = match self.symbols.get(text) {
            Some(&offset) => offset,
            None => number(text),
        };
        self.constant(value)
    }

    fn operands<const N: usize>(&mut self, texts: &[&str]) -> [Register; N] {
        let unused = self.constant(0);
        std::array::from_fn(|i| texts.get(i).map_or(unused, |text| self.operand(text)))
    }

    /// Parses `[%rd1+16]`.
    fn place(&mut self, text: &str) -> Place {
        let inner = text.trim_start_matches('[').trim_end_matches(']');
        let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        Place {
            base: self.operand(base),
            offset: number(offset),
        }
    }

    /// Parses `{%r1, %r2}` or a single register.
    fn list(&mut self, text: &str) -> Vec<Register> {
        let inner = text.trim_start_matches('{').trim_end_matches('}');
        inner
            .split(',')
            .map(|text| self.operand(text.trim()))
            .collect()
    }

    fn four(&mut self, text: &str) -> [Register; 4] {
        self.list(text).try_into().expect("four registers")
    }

    fn instruction(&mut self, text: &str) -> Instruction {
        let (guard, rest) = match text.strip_prefix('@') {
            Some(guarded) => {
                let (guard, rest) = guarded
                    .split_once(char::is_whitespace)
                    .expect("an instruction");
                let (name, wanted) = match guard.strip_prefix('!') {
                    Some(name) => (name, false),
                    None => (guard, true),
                };
                (Some((self.operand(name), wanted)), rest.trim_start())
            }
            None => (None, text),
        };
        let (name, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let operands = split_operands(operands);
        Instruction {
            guard,
            operation: self.operation(name, &operands),
            text: text.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    fn operation(&mut self, name: &str, operands: &[&str]) -> Operation {
        let parts: Vec<&str> = name.split('.').collect();
        match (parts[0], operands) {
            ("ret", _) => Operation::Return,
            ("bra", [label]) => Operation::Branch(self.labels[*label]),
            ("bar", ["0"]) if name == "bar.sync" => Operation::Barrier,
            ("bar", [members]) if name == "bar.warp.sync" => Operation::WarpBarrier {
                members: self.operand(members),
            },
            ("shfl", [to, rest @ ..]) => {
                let (to, is_within) = to
                    .split_once('|')
                    .map_or((*to, None), |(a, b)| (a, Some(b)));
                Operation::Shuffle {
                    how: match parts[2] {
                        "idx" => Shuffle::Index,
                        "bfly" => Shuffle::Butterfly,
                        other => panic!("a shuffle of kind {other}"),
                    },
                    to: self.operand(to),
                    is_within: is_within.map(|name| self.operand(name)),
                    from: self.operands(rest),
                }
            }
            ("mma", [to, a, b, c]) => Operation::Products {
                to: self.four(to),
                a: self.list(a),
                b: self.list(b),
                c: self.four(c),
            },
            ("cp", [to, from, bytes]) => Operation::BeginCopy {
                to: self.place(to),
                from: self.place(from),
                bytes: number(bytes) as usize,
            },
            ("cp", []) if name == "cp.async.commit_group" => Operation::EndGroup,
            ("cp", [later]) if name == "cp.async.wait_group" => {
                Operation::WaitForGroups(number(later) as usize)
            }
            ("prefetch", _) => Operation::Hint,
            ("cvta", [to, from]) if parts[1] == "shared" => Operation::Generic {
                to: self.operand(to),
                from: self.operand(from),
            },
            // Global addresses are the same in the generic space.
            ("cvta", [to, from]) if matches!(name, "cvta.to.global.u64" | "cvta.global.u64") => {
                self.mapped("mov.u64", &[to, from])
            }
            ("ld", [to, from]) => Operation::Load {
                space: space(&parts),
                element: element_of(parts[parts.len() - 1]),
                to: self.list(to),
                from: self.place(from),
            },
            ("st", [to, from]) => Operation::Store {
                space: space(&parts),
                element: element_of(parts[parts.len() - 1]),
                to: self.place(to),
                from: self.list(from),
            },
            ("mov", [to, from]) if from.starts_with('{') => Operation::Pack {
                to: self.operand(to),
                from: self.list(from),
            },
            (_, operands) => self.mapped(name, operands),
        }
    }

    fn mapped(&mut self, name: &str, operands: &[&str]) -> Operation {
        Operation::Map {
            map: arithmetic(name)
                .unwrap_or_else(|| panic!("{name} is new: arithmetic.rs has to say what it does")),
            rule: Rule::of(name),
            to: self.operand(operands[0]),
            from: self.operands(&operands[1..]),
        }
    }
}

/// Splits at commas, except within braces.
fn split_operands(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parted = text.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parted
        .map(str::trim)
        .filter(|text| !text.is_empty())
        .collect()
}

fn space(parts: &[&str]) -> Space {
    match parts[1] {
        "global" => Space::Global,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "param" => Space::Param,
        _ => Space::Generic,
    }
}

/// Parses `u16`, with or without a leading dot.
fn element_of(name: &str) -> Element {
    let name = name.trim_start_matches('.');
    let (kind, bits) = name.split_at(1);
    let bits: usize = bits.parse().unwrap_or_else(|_| panic!("{name} is no type"));
    Element {
        bytes: bits / 8,
        is_signed: kind == "s",
    }
}

/// Parses `12`, `-1`, `0f3F800000` (the bits of a float) or `0d3FF0000000000000`.
fn number(text: &str) -> u64 {
    let text = text.trim();
    let bits = |digits| u64::from_str_radix(digits, 16).ok();
    let found = match text.get(..2) {
        Some("0f" | "0d" | "0x") => bits(&text[2..]),
        _ => text.parse::<i64>().ok().map(|value| value as u64),
    };
    found.unwrap_or_else(|| panic!("{text} is no number"))
}

impl Program {
    /// Returns the initial registers.
    pub(super) fn registers(&self) -> Vec<Lanes> {
        let mut registers = vec![[0; WARP]; self.n_register];
        for &(register, value) in &self.constants {
            registers[register] = [value; WARP];
        }
        registers
    }

    /// Returns the initial masks of undefined bits.
    pub(super) fn unmeant(&self) -> Vec<Lanes> {
        let mut masks = vec![[u64::MAX; WARP]; self.n_register];
        let specials = self.specials.iter().map(|&(_, register)| register);
        for register in self
            .constants
            .iter()
            .map(|&(register, _)| register)
            .chain(specials)
        {
            masks[register] = [0; WARP];
        }
        masks
    }
}
