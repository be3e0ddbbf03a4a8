//! Prints the cost of an empty section in nanoseconds, with spinning and with parked workers.
//!
//! `cargo run --release -p moeflux-threads --example handover -- [THREADS]`. "any" is a section
//! whose tasks go to the first thread that is free, often all to the caller; in "meet" each thread
//! has to have one task: the way there and back.
#![expect(clippy::disallowed_methods, reason = "measuring time is the purpose")]
#![expect(clippy::print_stdout, reason = "printing is the purpose")]

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::Instant;

use moeflux_threads::Pool;

fn main() {
    let n_threads = std::env::args().nth(1).map_or(2, |text| text.parse().expect("a number"));
    let pool = Pool::new(n_threads).expect("threads");
    let any = || pool.run(n_threads, &|_, _| {});
    let meet = || {
        let n_here = AtomicUsize::new(0);
        pool.run(n_threads, &|_, _| {
            n_here.fetch_add(1, Ordering::Relaxed);
            while n_here.load(Ordering::Relaxed) < n_threads {
                spin_loop();
            }
        });
    };
    let park = || {
        while pool.n_parked() + 1 < n_threads {
            yield_now();
        }
    };
    measure("any, spinning", 200_000, || {}, any);
    measure("meet, spinning", 200_000, || {}, meet);
    measure("any, parked", 2000, park, any);
    measure("meet, parked", 2000, park, meet);
}

fn measure(name: &str, n_runs: usize, before: impl Fn(), section: impl Fn()) {
    (0..n_runs / 10).for_each(|_| section());
    let mut times: Vec<u128> = (0..n_runs)
        .map(|_| {
            before();
            let start = Instant::now();
            section();
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let at = |percent: usize| times[(n_runs - 1) * percent / 100];
    println!(
        "{name:<15} 10 % {:6} ns, median {:6} ns, 90 % {:6} ns, 99 % {:6} ns",
        at(10),
        at(50),
        at(90),
        at(99)
    );
}
