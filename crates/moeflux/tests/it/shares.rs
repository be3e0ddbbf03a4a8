//! Experts divided over ranks: what all parts compute together is what whole experts compute.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::error::Error;
use moeflux::provider::format::Checkpoint;
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::kernels::{Activations, Matrix, Product, by_name};
use moeflux::provider::weights::{ExpertBank, Shares};

use crate::cases::{case_names, golden_dir};

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

fn outputs(matrix: Matrix<'_>) -> Vec<u32> {
    let (layout, table) = (matrix.layout(), by_name("scalar").unwrap());
    let row: Vec<f32> =
        (0..17_u8).map(|i| f32::from(i) - 7.5).cycle().take(layout.n_cols).collect();
    let mut x = Activations::new();
    x.reshape(layout.kind, 1, layout.n_cols);
    x.fill(table, 0, &row);
    let mut out = vec![0.0; layout.n_rows.next_multiple_of(16)];
    table.matmul(&Product { matrix, rows: 0..layout.n_rows, x: &x, picks: &[0] }, &mut out);
    out[..layout.n_rows].iter().map(|value: &f32| value.to_bits()).collect()
}

/// What gate, up and down of an expert make of a row.
fn all_outputs(bank: &ExpertBank, expert: ExpertIdx, checkpoint: &Checkpoint) -> [Vec<u32>; 3] {
    let bytes = record(bank, expert, checkpoint);
    let view = bank.layout.view(&bytes);
    [outputs(view.gate), outputs(view.up), outputs(view.down)]
}

#[test]
fn all_parts_of_an_expert_compute_what_it_computes() {
    let (mut n_divided, mut n_refused) = (0, 0);
    for name in case_names() {
        let (blueprint, checkpoint) = Blueprint::open(&golden_dir().join(&name)).unwrap();
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
            let stored_bytes: usize =
                parts.iter().flat_map(|part| &part.parts).map(|part| part.len_bytes).sum();
            let whole_bytes: usize = bank.parts.iter().map(|part| part.len_bytes).sum();
            assert!(stored_bytes >= whole_bytes, "{name}, {shares:?}");
            let mut together = [const { Vec::new() }; 3];
            for part in &parts {
                let outputs = all_outputs(part, expert, &checkpoint);
                together.iter_mut().zip(outputs).for_each(|(all, own)| all.extend(own));
            }
            assert!(together == whole, "{name}, {shares:?}");
        }
    }
    assert!(n_divided > 300 && n_refused < n_divided / 5, "{n_divided}, and {n_refused} refused");
}
