//! Prints the speed of each kernel beside the limit of the machine.
//!
//! `cargo bench -p moeflux-kernels [-- NAME...]`: names of kernels, instruction sets (avx2) and
//! kinds of weights (q3g64, Q4_K, bf16; without one, q4g64). For attention, `matrix` is a block of
//! positions with their columns, and `rows` are heads. No matrix is used twice in a row:
//! weights come from memory, as in a model. **Invariant:** a rate is the median of calls of one
//! thread, summed over threads that run at once; no thread waits for another. Run without
//! `--bench`, as tests do, every cell is computed once, on little memory.
#![expect(clippy::disallowed_methods, reason = "measuring time is the purpose")]
#![expect(clippy::print_stdout, reason = "printing is the purpose")]
#![allow(unsafe_code, reason = "loops that need an instruction set")]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod limits;
mod timing;
mod attention;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use moeflux_io::AlignedBytes;
use moeflux_kernels::{
    Activations, Affine, BlockKind, FloatKind, FloatProduct, Fp8, IntProduct, IntRows, IntScratch,
    KernelTable, Matrix, MatrixKind, MatrixLayout, RepackedRows, available,
};

use crate::limits::{MachineLimits, Operands};
use crate::timing::{Effort, per_second};

/// A kernel that multiplies matrices.
struct BenchKernel {
    name: &'static str,
    /// The limit of arithmetic that it is compared with.
    operands: Operands,
    prepare: Prepare,
    /// Tables that have it from another table.
    not_in: &'static [&'static str],
}

impl BenchKernel {
    fn takes(&self, kind: MatrixKind) -> bool {
        self.operands == Operands::F32
            || matches!(kind, MatrixKind::Affine(_) | MatrixKind::Block(_))
    }
}

/// Returns a function that multiplies one matrix. Takes the table, the matrices' kind and columns,
/// and the number of rows of activations.
type Prepare = fn(&'static KernelTable, MatrixKind, usize, usize) -> Multiply;

type Multiply = Box<dyn FnMut(Matrix<'_>, &mut [f32])>;

/// A new kernel is one more line.
const KERNELS: [BenchKernel; 2] = [
    BenchKernel {
        name: "f32",
        operands: Operands::F32,
        prepare: float_product,
        not_in: &BYTE_PRODUCTS,
    },
    BenchKernel { name: "int8", operands: Operands::Int8, prepare: int_product, not_in: &[] },
];

/// Tables that add byte products to those of another table, and take the rest from it.
const BYTE_PRODUCTS: [&str; 5] = ["avxvnni", "avx512vnni", "amx", "dotprod", "i8mm"];

/// Rows and columns: a projection, and an expert's two shapes.
const SHAPES: [(usize, usize); 3] = [(2048, 2048), (512, 2048), (2048, 512)];

/// Rows of activations: a step of one token, an expert's share of a prompt, a prompt.
const ROWS: [usize; 3] = [1, 32, 512];

fn main() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let effort = if words.iter().any(|it| it == "--bench") { Effort::FULL } else { Effort::TOUCH };
    let words: Vec<&str> =
        words.iter().map(String::as_str).filter(|it| !it.starts_with('-')).collect();
    let names = [kernel_names(), isa_names()].concat();
    let is_known =
        |word: &&str| names.contains(word) || all_kinds().any(|it| it.to_string() == **word);
    if let Some(word) = words.iter().find(|word| !is_known(word)) {
        return Err(format!("`{word}` is none of {} or a kind of weights", names.join(", ")));
    }
    // As weights lie: in large pages where the system has them.
    let mut memory = AlignedBytes::zeroed(effort.pool_bytes).ok_or("no memory for weights")?;
    // Normal numbers whatever they are read as: bf16 and f16 scales near 0.01 and 1, any codes.
    memory.fill(0x3c);
    let limits = MachineLimits::measure(&memory, effort);
    print!("{limits}");
    println!(
        "{:<8}{:<12}{:<8}{:>11}{:>6}{:>9}{:>9}{:>11}{:>9}{:>9}",
        "kernel",
        "isa",
        "kind",
        "matrix",
        "rows",
        "threads",
        "GB/s",
        "of memory",
        "GOP/s",
        "of peak"
    );
    for kernel in KERNELS.iter().filter(|it| is_wanted(&words, it.name, &kernel_names())) {
        for table in tables() {
            let isa = table.name();
            if kernel.not_in.contains(&isa) || !is_wanted(&words, isa, &isa_names()) {
                continue;
            }
            for kind in kinds(&words).into_iter().filter(|kind| kernel.takes(*kind)) {
                for (n_rows, n_cols) in SHAPES {
                    let layout = MatrixLayout::new(kind, n_rows, n_cols).expect("a valid layout");
                    let cell =
                        BenchCell { kernel, table, layout, memory: &memory, limits: &limits };
                    cell.print(effort);
                }
            }
        }
    }
    for kernel in attention::KERNELS.iter().filter(|it| is_wanted(&words, it.name, &kernel_names()))
    {
        for table in tables() {
            let isa = table.name();
            if !BYTE_PRODUCTS.contains(&isa) && is_wanted(&words, isa, &isa_names()) {
                attention::print(kernel, table, (&limits, effort));
            }
        }
    }
    Ok(())
}

/// Returns whether `name` is selected: by itself, or because no word of its sort is given.
fn is_wanted(words: &[&str], name: &str, all_of_its_sort: &[&str]) -> bool {
    words.contains(&name) || !words.iter().any(|word| all_of_its_sort.contains(word))
}

fn kernel_names() -> Vec<&'static str> {
    let products = KERNELS.iter().map(|kernel| kernel.name);
    products.chain(attention::KERNELS.iter().map(|kernel| kernel.name)).collect()
}

fn isa_names() -> Vec<&'static str> {
    available().into_iter().map(KernelTable::name).collect()
}

/// The scalar table multiplies by library calls: it is measured only where there is no other.
fn tables() -> Vec<&'static KernelTable> {
    let all = available();
    if all.len() == 1 { all } else { all[1..].to_vec() }
}

fn all_kinds() -> impl Iterator<Item = MatrixKind> {
    let affine = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| [32, 64, 128].map(|group| Affine::new(bits, group, FloatKind::Bf16)));
    let blocks = BlockKind::ALL.map(MatrixKind::Block);
    let others = [MatrixKind::Fp8(Fp8::DEEPSEEK), MatrixKind::Float(FloatKind::Bf16)];
    affine.map(MatrixKind::Affine).chain(blocks).chain(others)
}

fn kinds(words: &[&str]) -> Vec<MatrixKind> {
    let named = |words: &[&str]| -> Vec<MatrixKind> {
        all_kinds().filter(|kind| words.contains(&kind.to_string().as_str())).collect()
    };
    let kinds = named(words);
    if kinds.is_empty() { named(&["q4g64"]) } else { kinds }
}

/// The lines of one kernel, instruction set and shape.
struct BenchCell<'a> {
    kernel: &'a BenchKernel,
    table: &'static KernelTable,
    layout: MatrixLayout,
    memory: &'a [u8],
    limits: &'a MachineLimits,
}

impl BenchCell<'_> {
    fn print(&self, effort: Effort) {
        let MatrixLayout { kind, n_rows: n_outputs, n_cols } = self.layout;
        let isa = self.table.name();
        for n_rows in ROWS {
            for (n_threads, memory_bytes_per_s) in self.limits.memory() {
                let matrices_per_s = self.measure(n_rows, n_threads, effort);
                let bytes_per_s = matrices_per_s * self.layout.total_bytes() as f64;
                let ops_per_s = matrices_per_s * (2 * n_outputs * n_cols * n_rows) as f64;
                let peak = self.limits.peak(isa, self.kernel.operands, n_threads);
                println!(
                    "{:<8}{isa:<12}{:<8}{:>11}{n_rows:>6}{n_threads:>9}{:>9.2}{:>11}{:>9.1}{:>9}",
                    self.kernel.name,
                    kind.to_string(),
                    format!("{n_outputs}x{n_cols}"),
                    bytes_per_s / 1e9,
                    share(bytes_per_s, Some(memory_bytes_per_s)),
                    ops_per_s / 1e9,
                    share(ops_per_s, peak),
                );
            }
        }
    }

    fn measure(&self, n_rows: usize, n_threads: usize, effort: Effort) -> f64 {
        let MatrixLayout { kind, n_rows: n_outputs, n_cols } = self.layout;
        per_second(n_threads, effort, &|thread_idx| {
            let mut multiply = (self.kernel.prepare)(self.table, kind, n_rows, n_cols);
            let mut out = vec![0.0; n_outputs * n_rows];
            let mut matrix_idx = thread_idx;
            Box::new(move || {
                multiply(self.matrix(matrix_idx), &mut out);
                matrix_idx += n_threads;
                std::hint::black_box(&out);
                1
            })
        })
    }

    /// One of the matrices that fit in the memory, which come in turn.
    fn matrix(&self, matrix_idx: usize) -> Matrix<'_> {
        let layout = self.layout;
        let n_matrices = self.memory.len() / layout.total_bytes();
        let bytes = &self.memory[matrix_idx % n_matrices * layout.total_bytes()..];
        let (codes, bytes) = bytes.split_at(layout.code_bytes());
        let (scales, bytes) = bytes.split_at(layout.scale_bytes());
        Matrix::new(layout, codes, scales, &bytes[..layout.bias_bytes()])
    }
}

fn share(value: f64, limit: Option<f64>) -> String {
    limit.map_or("-".to_owned(), |limit| format!("{:.0} %", 100.0 * value / limit))
}

fn float_product(
    table: &'static KernelTable,
    kind: MatrixKind,
    n_rows: usize,
    n_cols: usize,
) -> Multiply {
    let mut x = Activations::new();
    x.reshape(kind, n_rows, n_cols);
    for row_idx in 0..n_rows {
        x.fill(table, row_idx, &activations(n_cols));
    }
    let picks: Vec<usize> = (0..n_rows).collect();
    Box::new(move |matrix, out| {
        let rows = 0..matrix.layout().n_rows;
        table.matmul(&FloatProduct { matrix, rows, x: &x, picks: &picks }, out);
    })
}

/// The roundings of activations are not in it: they are shared by several matrices.
fn int_product(
    table: &'static KernelTable,
    kind: MatrixKind,
    n_rows: usize,
    n_cols: usize,
) -> Multiply {
    let (mut x, mut scratch) = (IntRows::new(), IntScratch::default());
    let mut repacked = RepackedRows::default();
    x.reshape(kind, n_rows, n_cols);
    for row_idx in 0..n_rows {
        x.fill(table, row_idx, &activations(n_cols));
    }
    let picks: Vec<usize> = (0..n_rows).collect();
    Box::new(move |matrix, out| {
        let rows = 0..matrix.layout().n_rows;
        let x = table.repack(&x, &picks, &mut repacked);
        table.int_matmul(&IntProduct { matrix, rows, x }, &mut scratch, out);
    })
}

/// A row of small numbers of both signs.
fn activations(n_cols: usize) -> Vec<f32> {
    (0..17_u8).map(|i| f32::from(i) - 8.0).cycle().take(n_cols).collect()
}
