//! The tile unit: permission to use it, its shapes, and one product of tiles.
//!
//! The compiler has no intrinsics for these instructions yet, so they are written as assembly. It
//! never uses tiles itself: the contents persist from one statement to the next. **Invariant:**
//! tiles are released when [`ConfiguredTiles`] is dropped, so that a sleeping thread has no
//! additional state.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Bytes of a tile's row, as stored in memory.
pub(super) const LINE: usize = 64;

/// Bytes of a whole tile.
pub(super) const TILE_BYTES: usize = 16 * LINE;

/// Integers of a whole tile: sixteen of each row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct TileSums(pub(super) [[i32; 16]; 16]);

impl TileSums {
    pub(super) const ZEROS: Self = Self([[0; 16]; 16]);
}

/// A unit that multiplies tiles: two of codes with two of activations, into four of sums.
pub(super) trait TileUnit {
    /// Sets all sums to zero.
    fn clear(&mut self);

    /// Loads sixteen rows of codes.
    ///
    /// # Safety
    ///
    /// The tile's depth in bytes must be readable in each row.
    unsafe fn load_codes<const I: usize>(&mut self, rows: TileRows);

    /// Loads sixteen rows of activations, in tile order.
    ///
    /// # Safety
    ///
    /// A tile must be readable from `first`.
    unsafe fn load_values<const I: usize>(&mut self, first: *const u8);

    /// Adds the products of two tiles.
    fn multiply<const CODES: usize, const VALUES: usize>(&mut self);

    /// Adds the products of two tiles with the signs of the operands swapped: the tile of
    /// [`TileUnit::load_codes`] has signed bytes, that of [`TileUnit::load_values`] unsigned ones.
    fn multiply_swapped<const CODES: usize, const VALUES: usize>(&mut self);

    /// Stores sums.
    fn store<const CODES: usize, const VALUES: usize>(&mut self, sums: &mut TileSums);
}

/// Rows of matrix codes.
#[derive(Clone, Copy)]
pub(super) struct TileRows {
    /// The first row of the first tile.
    pub(super) first: *const u8,
    /// Distance between rows, in bytes.
    pub(super) stride: usize,
    /// Distance between tiles, in bytes.
    pub(super) step: usize,
}

impl Default for TileRows {
    fn default() -> Self {
        Self { first: std::ptr::null(), stride: 0, step: 0 }
    }
}

/// Proof that this process may use AMX.
#[derive(Clone, Copy)]
pub(super) struct Amx(());

impl Amx {
    /// Returns the unit, if the CPU and the system let this process use it.
    pub(super) fn get() -> Option<Self> {
        static IS_USABLE: OnceLock<bool> = OnceLock::new();
        let is_usable = *IS_USABLE
            .get_or_init(|| cpu_has_amx() && system_saves_tiles() && request_permission());
        is_usable.then_some(Self(()))
    }

    /// Sets the shapes of tiles for groups of `group` columns, until the result is dropped.
    #[inline(always)]
    pub(super) fn configured(self, group: usize) -> ConfiguredTiles {
        let config = TileConfig::of(group);
        // SAFETY: the unit may be used, and the configuration is a valid one of palette 1.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags));
        }
        ConfiguredTiles(())
    }
}

/// Guard of the tile configuration.
#[derive(Debug)]
pub(super) struct ConfiguredTiles(());

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        // SAFETY: the creator of this value configured the tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

/// Tiles 0 to 3 hold sums, 4 and 5 codes, 6 and 7 activations.
impl TileUnit for Amx {
    #[inline(always)]
    fn clear(&mut self) {
        // SAFETY: tiles are configured while a product is computed.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn load_codes<const I: usize>(&mut self, rows: TileRows) {
        // SAFETY: the caller vouches for the rows; tiles are configured.
        unsafe {
            asm!(
                "tileloadd tmm{tile}, [{first} + {stride}]",
                tile = const 4 + I,
                first = in(reg) rows.first,
                stride = in(reg) rows.stride,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn load_values<const I: usize>(&mut self, first: *const u8) {
        // SAFETY: the caller vouches for the tile; tiles are configured.
        unsafe {
            asm!(
                "tileloadd tmm{tile}, [{first} + {stride}]",
                tile = const 6 + I,
                first = in(reg) first,
                stride = in(reg) LINE,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn multiply<const CODES: usize, const VALUES: usize>(&mut self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!(
                "tdpbusd tmm{sums}, tmm{codes}, tmm{values}",
                sums = const 2 * CODES + VALUES,
                codes = const 4 + CODES,
                values = const 6 + VALUES,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn multiply_swapped<const CODES: usize, const VALUES: usize>(&mut self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!(
                "tdpbsud tmm{sums}, tmm{codes}, tmm{values}",
                sums = const 2 * CODES + VALUES,
                codes = const 4 + CODES,
                values = const 6 + VALUES,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    #[inline(always)]
    fn store<const CODES: usize, const VALUES: usize>(&mut self, sums: &mut TileSums) {
        // SAFETY: `sums` is as large as the tile; tiles are configured.
        unsafe {
            asm!(
                "tilestored [{sums} + {stride}], tmm{tile}",
                tile = const 2 * CODES + VALUES,
                sums = in(reg) sums,
                stride = in(reg) LINE,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Shapes of the eight tiles, as read by `ldtilecfg`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    n_rows: [u8; 16],
}

const _: () = assert!(size_of::<TileConfig>() == 64, "as the instruction reads it");

impl TileConfig {
    fn of(group: usize) -> Self {
        let (mut row_bytes, mut n_rows) = ([0; 16], [0; 16]);
        let depth = depth(group);
        row_bytes[..8].copy_from_slice(&[64, 64, 64, 64, depth, depth, 64, 64]);
        let [quads, _] = (depth / 4).to_le_bytes();
        n_rows[..8].copy_from_slice(&[16, 16, 16, 16, 16, 16, quads, quads]);
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, n_rows }
    }
}

/// Returns the columns of a tile: 64, or one group if that is less.
fn depth(group: usize) -> u16 {
    match group {
        16 => 16,
        32 => 32,
        _ => 64,
    }
}

/// Checks CPUID: tiles, int8 products, and a palette of eight tiles of sixteen rows of 64 bytes.
fn cpu_has_amx() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    if __cpuid(0).eax < 0x1d {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    if features & (TILE | INT8) != TILE | INT8 {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    palette.ebx == 8 << 16 | 64 && palette.ecx & 0xffff == 16
}

/// Checks XCR0: the system preserves tiles across context switches.
fn system_saves_tiles() -> bool {
    const TILES: u64 = 0b11 << 17;
    if !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: the CPU has the instruction, and the system has enabled it.
    unsafe { _xgetbv(0) & TILES == TILES }
}

/// Requests from Linux, once per process, the space for tiles in each thread's state.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let answer: isize;
    // SAFETY: the call takes two numbers, and touches no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

/// Returns `false`: the methods of other systems are untested.
#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// An emulation of the unit, to test the surrounding code on every CPU.
#[cfg(any(test, feature = "emulated"))]
pub(super) struct EmulatedAmx {
    depth: usize,
    sums: [TileSums; 4],
    codes: [[[u8; LINE]; 16]; 2],
    values: [[[i8; LINE]; 16]; 2],
}

#[cfg(any(test, feature = "emulated"))]
impl EmulatedAmx {
    pub(super) fn new(group: usize) -> Self {
        let depth = usize::from(depth(group));
        let (codes, values) = ([[[0; LINE]; 16]; 2], [[[0; LINE]; 16]; 2]);
        Self { depth, sums: [TileSums::ZEROS; 4], codes, values }
    }
}

#[cfg(any(test, feature = "emulated"))]
impl TileUnit for EmulatedAmx {
    fn clear(&mut self) {
        self.sums = [TileSums::ZEROS; 4];
    }

    unsafe fn load_codes<const I: usize>(&mut self, rows: TileRows) {
        for (r, row) in self.codes[I].iter_mut().enumerate() {
            for (k, code) in row[..self.depth].iter_mut().enumerate() {
                // SAFETY: the caller vouches for the rows.
                *code = unsafe { *rows.first.wrapping_add(r * rows.stride + k) };
            }
        }
    }

    unsafe fn load_values<const I: usize>(&mut self, first: *const u8) {
        for (r, row) in self.values[I][..self.depth / 4].iter_mut().enumerate() {
            for (k, value) in row.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the tile.
                *value = unsafe { *first.wrapping_add(r * LINE + k).cast::<i8>() };
            }
        }
    }

    fn multiply<const CODES: usize, const VALUES: usize>(&mut self) {
        let (codes, values) = (&self.codes[CODES], &self.values[VALUES]);
        for (codes, sums) in codes.iter().zip(&mut self.sums[2 * CODES + VALUES].0) {
            for (col, sum) in sums.iter_mut().enumerate() {
                for k in 0..self.depth {
                    *sum += i32::from(codes[k]) * i32::from(values[k / 4][4 * col + k % 4]);
                }
            }
        }
    }

    fn multiply_swapped<const CODES: usize, const VALUES: usize>(&mut self) {
        let (codes, values) = (&self.codes[CODES], &self.values[VALUES]);
        for (codes, sums) in codes.iter().zip(&mut self.sums[2 * CODES + VALUES].0) {
            for (col, sum) in sums.iter_mut().enumerate() {
                for k in 0..self.depth {
                    let value = values[k / 4][4 * col + k % 4].cast_unsigned();
                    *sum += i32::from(codes[k].cast_signed()) * i32::from(value);
                }
            }
        }
    }

    fn store<const CODES: usize, const VALUES: usize>(&mut self, sums: &mut TileSums) {
        *sums = self.sums[2 * CODES + VALUES];
    }
}
