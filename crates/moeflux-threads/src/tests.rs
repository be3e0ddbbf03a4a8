//! Runs sections of all sizes on pools of all sizes, with workers awake and parked.
//!
//! No test depends on time: if workers must be parked or take part, the test waits until they do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread::{current, yield_now};

use crate::Pool;

/// Miri runs one thread at a time, and slowly.
const N_THREADS: &[usize] = if cfg!(miri) { &[1, 2, 3] } else { &[1, 2, 3, 4, 8] };

/// Returns how often a test repeats: `n` times, and far less often under Miri.
fn rounds(n: usize) -> usize {
    if cfg!(miri) { n.div_ceil(50).max(3) } else { n }
}

/// Waits until all workers are parked.
fn wait_until_parked(pool: &Pool) {
    while pool.n_parked() + 1 < pool.n_threads() {
        yield_now();
    }
}

/// Runs a section and checks that each task ran once, on a thread of the pool.
#[track_caller]
fn check(pool: &Pool, n_tasks: usize) {
    let n_runs: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(n_tasks, &|thread_idx, task_idx| {
        assert!(thread_idx < pool.n_threads());
        n_runs[task_idx].fetch_add(1, Ordering::Relaxed);
    });
    let n_runs: Vec<usize> = n_runs.into_iter().map(AtomicUsize::into_inner).collect();
    assert_eq!(n_runs, vec![1; n_tasks]);
}

fn message(f: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(f)).expect_err("a panic");
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap()
}

#[test]
fn each_task_runs_once() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        assert_eq!(pool.n_threads(), n_threads);
        for n_tasks in [0, 1, 2, 3, 4, 7, 8, 9, 64, 1000] {
            check(&pool, n_tasks);
        }
    }
}

/// Eight threads even on two cores: a section must not wait for threads that have no core.
#[test]
fn many_short_sections_with_workers_awake_and_parked() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        for round in 0..rounds(2000) {
            check(&pool, round % 20);
            if round % 100 == 0 {
                wait_until_parked(&pool);
            }
        }
    }
}

/// Values written by one section are read by the next, on other threads.
#[test]
fn sections_see_writes_of_the_previous_one() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        let (n, n_steps) = (64, rounds(3000));
        let mut values = vec![0_u64; n];
        let mut next = vec![0_u64; n];
        let cuts: Vec<usize> = (0..=n / 4).map(|i| i * 4).collect();
        for _ in 0..n_steps {
            pool.split(&mut next, &cuts, &|_, part_idx, part| {
                for (i, it) in part.iter_mut().enumerate() {
                    *it = values[(part_idx * 4 + i + 1) % n] + 1;
                }
            });
            std::mem::swap(&mut values, &mut next);
        }
        assert_eq!(values, vec![n_steps as u64; n]);
    }
}

/// All threads meet inside a section: each must take part, and each has its own index.
#[test]
fn every_worker_takes_part() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        for round in 0..rounds(50) {
            let barrier = Barrier::new(n_threads);
            let n_seen: Vec<AtomicUsize> = (0..n_threads).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n_threads, &|thread_idx, _| {
                assert_eq!(pool.thread_idx(), thread_idx);
                let name = current().name().map(str::to_owned);
                let expected = format!("moeflux-cpu-{thread_idx}");
                assert_eq!(thread_idx == 0, name != Some(expected), "the caller is thread 0");
                n_seen[thread_idx].fetch_add(1, Ordering::Relaxed);
                barrier.wait();
            });
            let n_seen: Vec<usize> = n_seen.into_iter().map(AtomicUsize::into_inner).collect();
            assert_eq!(n_seen, vec![1; n_threads]);
            if round % 10 == 0 {
                wait_until_parked(&pool);
            }
        }
    }
}

/// The caller parks while a worker has the last task.
#[test]
fn a_late_worker_is_waited_for() {
    let pool = Pool::new(2).unwrap();
    let n_additions = if cfg!(miri) { 2_000 } else { 2_000_000 };
    for _ in 0..rounds(20) {
        let barrier = Barrier::new(2);
        let mut done = [false; 2];
        pool.split(&mut done, &[0, 1, 2], &|thread_idx, _, done| {
            barrier.wait();
            if thread_idx != 0 {
                // Far longer than the caller spins.
                (0..rounds(2000)).for_each(|_| yield_now());
                let busy: u64 = (0..n_additions).fold(1, |sum, it| std::hint::black_box(sum ^ it));
                assert_ne!(busy, u64::MAX);
            }
            done[0] = true;
        });
        assert_eq!(done, [true; 2]);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        for bad_idx in [0, 1, 17, 99] {
            let n_inside = AtomicUsize::new(0);
            let text = message(|| {
                pool.run(100, &|_, task_idx| {
                    n_inside.fetch_add(1, Ordering::SeqCst);
                    assert_ne!(task_idx, bad_idx, "a bad task");
                    yield_now();
                    n_inside.fetch_sub(1, Ordering::SeqCst);
                });
            });
            assert!(text.contains("a bad task"), "{text}");
            assert_eq!(n_inside.into_inner(), 1, "all but the bad task have ended");
            check(&pool, 100);
        }
    }
}

#[test]
fn panics_on_every_thread_reach_the_caller_as_one() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        let barrier = Barrier::new(n_threads);
        let text = message(|| {
            pool.run(n_threads, &|_, _| {
                barrier.wait();
                panic!("all of us");
            });
        });
        assert_eq!(text, "all of us");
        check(&pool, 10);
    }
}

#[test]
fn sections_do_not_nest() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        let text = message(|| pool.run(4, &|_, _| pool.run(1, &|_, _| {})));
        assert_eq!(text, "a pool runs one section at a time, and none inside another");
        check(&pool, 10);
    }
}

/// A worker of one pool is a normal caller of another.
#[test]
fn a_task_may_run_sections_of_another_pool() {
    let outer = Pool::new(3).unwrap();
    let inner: Vec<Mutex<Pool>> = (0..3).map(|_| Mutex::new(Pool::new(2).unwrap())).collect();
    let barrier = Barrier::new(3);
    outer.run(3, &|thread_idx, _| {
        barrier.wait();
        let pool = inner[thread_idx].lock().unwrap();
        assert_eq!(pool.thread_idx(), 0);
        (0..rounds(100)).for_each(|_| check(&pool, 5));
    });
}

/// A pool may move from one calling thread to another.
#[test]
fn any_thread_may_call() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..rounds(20) {
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| (0..rounds(20)).for_each(|_| check(&pool, 9)));
            // ThreadSanitizer recognises a join, but not that a scope waits for its threads.
            caller.join().unwrap();
        });
    }
}

#[test]
fn dropping_joins_workers_awake_and_parked() {
    for &n_threads in N_THREADS {
        for round in 0..rounds(30) {
            let pool = Pool::new(n_threads).unwrap();
            let shared = pool.watch();
            match round % 3 {
                0 => {}
                1 => check(&pool, 20),
                _ => wait_until_parked(&pool),
            }
            drop(pool);
            assert!(shared.upgrade().is_none(), "a worker is left");
        }
    }
}

#[test]
#[should_panic(expected = "the caller is a thread of the pool")]
fn no_threads_are_refused() {
    drop(Pool::new(0));
}

/// Each value belongs to the part given by the cuts, and to no other.
#[test]
fn slices_are_split_at_the_cuts() {
    let cases: [&[usize]; 7] =
        [&[], &[5], &[0, 10], &[0, 1, 10], &[2, 2, 3, 7], &[0, 0, 0], &[3, 4, 5, 6, 7, 8, 9, 10]];
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        for cuts in cases {
            let mut values = vec![usize::MAX; 10];
            let mut names = vec![String::new(); 10];
            pool.split(&mut values, cuts, &|_, part_idx, part| part.fill(part_idx));
            let both = (values.as_mut_slice(), cuts);
            pool.split_two(both, (&mut names, cuts), &|_, part_idx, values, names| {
                assert!(values.iter().all(|&it| it == part_idx));
                names.fill(part_idx.to_string());
            });
            for (i, (&value, name)) in values.iter().zip(&names).enumerate() {
                let part_idx = (1..cuts.len()).find(|&it| (cuts[it - 1]..cuts[it]).contains(&i));
                assert_eq!(value, part_idx.map_or(usize::MAX, |it| it - 1), "{cuts:?}");
                assert_eq!(*name, part_idx.map_or(String::new(), |it| (it - 1).to_string()));
            }
        }
    }
}

#[test]
fn bad_cuts_are_refused() {
    let pool = Pool::new(2).unwrap();
    let split = |cuts: &[usize]| message(|| pool.split(&mut [0; 4], cuts, &|_, _, _| {}));
    assert_eq!(split(&[0, 3, 2]), "cuts ascend");
    assert_eq!(split(&[0, 5]), "a cut at 5 of 4 values");
    assert_eq!(split(&[5]), "a cut at 5 of 4 values");
    let text = message(|| {
        pool.split_two((&mut [0; 4], &[0, 4]), (&mut [0; 4], &[0, 2, 4]), &|_, _, _, _| {});
    });
    assert!(text.contains("parts of two slices"), "{text}");
}

#[test]
fn columns_are_written_by_one_task_each() {
    for &n_threads in N_THREADS {
        let pool = Pool::new(n_threads).unwrap();
        for (n_rows, row_len, cuts) in [
            (3, 10, vec![0, 4, 4, 9]),
            (1, 5, vec![1, 2, 5]),
            (0, 5, vec![0, 2, 5]),
            (4, 7, vec![7, 7]),
            (2, 3, vec![]),
        ] {
            let mut values = vec![0; n_rows * row_len];
            pool.split_columns((&mut values, row_len), &cuts, &|_, part_idx, mut columns| {
                assert_eq!(columns.n_rows(), n_rows);
                for row_idx in 0..n_rows {
                    columns.row_mut(row_idx).iter_mut().for_each(|it| *it += part_idx + 1);
                }
            });
            let part = |col: usize| cuts.windows(2).position(|it| (it[0]..it[1]).contains(&col));
            let row: Vec<usize> =
                (0..row_len).map(|col| part(col).map_or(0, |it| it + 1)).collect();
            assert_eq!(values, row.repeat(n_rows), "{n_rows} rows, cuts {cuts:?}");
        }
    }
}

#[test]
fn columns_outside_a_row_are_refused() {
    let pool = Pool::new(2).unwrap();
    let text = message(|| pool.split_columns((&mut [0; 6], 3), &[0, 4], &|_, _, _| {}));
    assert_eq!(text, "a cut at 4 of 3 columns");
    let text = message(|| pool.split_columns((&mut [0; 6], 4), &[0, 4], &|_, _, _| {}));
    assert!(text.contains("whole rows"), "{text}");
    let text = message(|| {
        pool.split_columns((&mut [0; 6], 3), &[0, 3], &|_, _, mut columns| {
            columns.row_mut(2);
        });
    });
    assert!(text.contains("row 2 of 2"), "{text}");
}
