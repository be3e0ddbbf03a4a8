//! Experts divided among ranks: all parts together compute the results of whole experts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use moeflux::provider::error::Error;
use moeflux::provider::format::Checkpoint;
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::kernels::{
    Activations, FloatProduct, IntProduct, IntRows, IntScratch, Matrix, MatrixKind, RepackedRows,
    best,
};
use moeflux::provider::model::{Headers, Model};
use moeflux::provider::weights::{ExpertBank, PartRole, Shares};
use moeflux_testing::cases::{case_names, golden_dir};

/// Divisions that are tried: equal ones, and some in which ranks have more and less.
fn divisions() -> Vec<Shares> {
    let equal = [1, 2, 3, 4, 8].map(Shares::equal);
    equal.into_iter().chain([Shares::new(vec![3, 1]), Shares::new(vec![1, 2, 1])]).collect()
}

/// An expert as it lies in memory.
fn record(bank: &ExpertBank, expert: ExpertIdx, checkpoint: &Checkpoint) -> Vec<u8> {
    let mut bytes = vec![0; bank.record_bytes().max(bank.layout.record_bytes())];
    for part in &bank.parts {
        let extent = part.extent(expert);
        let mut file = File::open(&checkpoint.files[extent.file_idx].path).unwrap();
        file.seek(SeekFrom::Start(extent.offset_bytes)).unwrap();
        file.read_exact(&mut bytes[part.record_at..][..part.len_bytes]).unwrap();
    }
    bytes
}

/// Returns the product of a matrix and a row, in f32 and, if its kind supports it, in int8.
fn outputs(matrix: Matrix<'_>) -> [Vec<u32>; 2] {
    let (layout, table) = (matrix.layout(), best());
    let row = (0..17_u8).map(|i| f32::from(i) - 7.5).cycle().take(layout.n_cols);
    let row: Vec<f32> = row.collect();
    let rows = 0..layout.n_rows;
    let mut out = vec![0.0; layout.n_rows.next_multiple_of(16)];
    let mut x = Activations::new();
    x.reshape(layout.kind, 1, layout.n_cols);
    x.fill(table, 0, &row);
    table.matmul(&FloatProduct { matrix, rows: rows.clone(), x: &x, picks: &[0] }, &mut out);
    let bits = |out: &[f32]| out[..layout.n_rows].iter().map(|value| value.to_bits()).collect();
    let in_floats = bits(&out);
    if !matches!(layout.kind, MatrixKind::Affine(_) | MatrixKind::Block(_)) {
        return [in_floats, Vec::new()];
    }
    let (mut x, mut scratch) = (IntRows::new(), IntScratch::default());
    let mut repacked = RepackedRows::default();
    x.reshape(layout.kind, 1, layout.n_cols);
    x.fill(table, 0, &row);
    let x = table.repack(&x, &[0], &mut repacked);
    table.int_matmul(&IntProduct { matrix, rows, x }, &mut scratch, &mut out);
    [in_floats, bits(&out)]
}

/// Returns the products of a row with gate, up and down of an expert.
fn all_outputs(bank: &ExpertBank, expert: ExpertIdx, checkpoint: &Checkpoint) -> Vec<Vec<u32>> {
    let bytes = record(bank, expert, checkpoint);
    let view = bank.layout.view(&bytes);
    [view.gate, view.up, view.down].into_iter().flat_map(outputs).collect()
}

/// Each code belongs to one rank, and so are scales of one row; the first of these is named
/// as that of the whole expert.
fn check_parts(bank: &ExpertBank, parts: &[ExpertBank], expert: ExpertIdx) {
    for (part_idx, whole) in bank.parts.iter().enumerate() {
        let owned: Vec<_> = parts.iter().map(|bank| (bank, &bank.parts[part_idx])).collect();
        let n_bytes: usize = owned.iter().map(|(_, part)| part.len_bytes).sum();
        let kinds = [bank.layout.gate, bank.layout.down].map(|span| span.layout.kind);
        let is_shared = kinds.iter().any(|kind| matches!(kind, MatrixKind::Fp8(_)));
        match whole.role {
            PartRole::Scales(_) if is_shared => assert!(n_bytes <= whole.len_bytes * parts.len()),
            _ => assert_eq!(n_bytes, whole.len_bytes, "{}", whole.name),
        }
        let PartRole::Scales(kind) = whole.role else { continue };
        for (bank_of_rank, part) in owned {
            let skipped = part.extent(expert).offset_bytes - whole.extent(expert).offset_bytes;
            let value_idx = usize::try_from(skipped).unwrap() / kind.bytes();
            let place = bank.scale_place(whole, expert, value_idx);
            assert_eq!(bank_of_rank.scale_place(part, expert, 0), place);
        }
    }
}

#[test]
fn all_parts_of_an_expert_together_give_its_bits() {
    let (mut n_divided, mut n_refused) = (0, 0);
    for name in case_names() {
        let (blueprint, checkpoint) = Model::open(golden_dir().join(&name)).unwrap().into_parts();
        let Some(bank) = blueprint.manifest.banks.first() else { continue };
        let expert = ExpertIdx(bank.n_experts - 1);
        let whole = all_outputs(bank, expert, &checkpoint);
        for shares in divisions() {
            let parts = (0..shares.n_ranks()).map(|rank| bank.part_of(&shares, rank));
            let parts: Vec<ExpertBank> = match parts.collect() {
                Ok(parts) => parts,
                Err(Error::Unsupported(_)) => {
                    n_refused += 1;
                    continue;
                }
                Err(error) => panic!("{name}, {shares:?}: {error}"),
            };
            n_divided += 1;
            check_parts(bank, &parts, expert);
            let mut together = vec![Vec::new(); whole.len()];
            for part in &parts {
                let outputs = all_outputs(part, expert, &checkpoint);
                together.iter_mut().zip(outputs).for_each(|(all, own)| all.extend(own));
            }
            assert!(together == whole, "{name}, {shares:?}");
        }
    }
    println!("{n_divided} divisions, and {n_refused} that were refused");
    assert!(n_divided > 300 && n_refused < n_divided / 5, "{n_divided}, and {n_refused} refused");
}
