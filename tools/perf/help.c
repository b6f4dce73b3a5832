/* The text of --help. */
#include "options.h"

void perf_options_help(const struct perf_options *o, FILE *out)
{
  if (o->nccl_tests_name)
    fprintf(out, "usage: %s [flags]\n", o->program);
  else
    fprintf(out, "usage: %s COLLECTIVE [flags]\n", o->program);
  fputs("Measures a collective and checks every element of its results.\n\n"
        "COLLECTIVE: all_reduce all_gather reduce_scatter broadcast reduce alltoall gather scatter sendrecv\n"
        "or pairs: send/recv between each two ranks, as matrices (see below)\n"
        "The same program under the name all_reduce_perf, all_gather_perf, ... runs that collective.\n\n"
        "Ranks (processes x threads x communicators a thread)\n",
        out);
  fputs(o->nccl_tests_name ? "      --np N            start N processes here (default: this one only)\n"
                           : "  -n, --np N            start N processes here (default: this one only)\n",
        out);
  fputs("  -t, --nthreads N      threads in each process (1)\n"
        "  -g, --ngpus N         communicators that each thread drives in a group (1)\n"
        "      Under mpirun, srun or torchrun the processes are those the launcher started. By hand:\n"
        "      --rank R --nranks N --root-addr HOST:PORT   process R of N; process 0 listens at HOST:PORT\n"
        "      --join-timeout S  seconds to wait for the other processes (60)\n"
        "      TUTTI_PERF_ROOT=HOST:PORT in the environment is the same as --root-addr.\n"
        "  -p, --parallel_init B 1: each thread creates its own communicators (0: the main thread creates all)\n\n"
        "Devices\n"
        "      --device D        host: ordinary memory; cuda: GPUs, one a rank; auto: what TUTTI_DEVICE says, else "
        "GPUs if\n"
        "                        there are any (auto). TUTTI_ALLOW_DUPLICATE_DEVICE=1 lets ranks share a GPU.\n"
        "                        TUTTI_PERF_CUDA=FILE: the helper libtutti-perf-cuda.so, if it is somewhere else\n"
        "      --alloc M         plain: the device's own memory; on GPUs also nccl: from ncclMemAlloc; registered: "
        "that, and\n"
        "                        ncclCommRegister; window: that, and symmetric windows (plain)\n"
        "  -R, --local_register N  GPUs: 1: --alloc registered; 2: --alloc window (0)\n"
        "  -G, --graph N         GPUs: capture all iterations in a graph and launch it N times (0: no graph).\n"
        "                        Checks then launch a graph again and again, with new data each (--cudagraph)\n"
        "  -y, --stream_null B   1: use the NULL stream; 0: a stream of its own for each rank, on which all are "
        "enqueued\n"
        "                        before the wait for them (GPUs: 0; host: 1)\n\n"
        "Sizes: bytes with K, M, G or T (powers of 1024)\n"
        "  -b, --minbytes SIZE   smallest (32M)\n"
        "  -e, --maxbytes SIZE   largest (32M)\n"
        "  -i, --stepbytes SIZE  step between sizes (1M)\n"
        "  -f, --stepfactor X    factor between sizes, instead of a step\n"
        "      --sizes A,B,...   these sizes, instead of a sweep\n\n"
        "What is run\n"
        "  -d, --datatype TYPE   int8 uint8 int32 uint32 int64 uint64 half float double bfloat16, or all (float);\n"
        "                        f8e4m3 and f8e5m2 where the device reduces them, without averages\n"
        "  -o, --op OP           sum prod min max avg, or all (sum)\n"
        "  -r, --root R          root rank, or all (0)\n",
        out);
  fputs(o->nccl_tests_name ? "  -n, --iters N         timed iterations (20)\n"
                           : "      --iters N         timed iterations (20)\n",
        out);
  fputs(
      "  -w, --warmup_iters N  iterations before them (1)\n"
      "  -m, --agg_iters N     operations in the group of each iteration (1)\n"
      "      --repeats N       measure each size N times, and report the median (1)\n"
      "      --form F          out (of place), in (place), or both (both)\n"
      "      --rotate N        iterations take turns with N places of buffers N times as large (0: they move through\n"
      "                        buffers of the largest size, as in nccl-tests)\n"
      "      --dependent B     1: an iteration sends what the one before received, and roots take turns, so that no "
      "rank\n"
      "                        gets ahead (0)\n"
      "      --load B          1: each rank's device multiplies matrices meanwhile, with cuBLAS where it is (0)\n"
      "  -N, --run_cycles N    rows for each size; 0: without end (1)\n"
      "  -u, --unalign N       start buffers N elements after an aligned address (0)\n"
      "  -z, --blocking M      1: barrier after each iteration; 3: barrier that is not timed; 0, 2: none (0)\n"
      "  -x, --cta_policy N    the communicators' policy: 0: default, 1: efficiency, 2: zero (copy engines copy what "
      "they can)\n"
      "  -c, --check N         check N repetitions of each size, with new data each (1); 0: do not check\n\n"
      "Pairs\n"
      "  tutti-perf pairs -n N or -t N  bandwidth of each two ranks with -e bytes, one after the other, one way and "
      "both "
      "ways\n"
      "                        at once, and the latency of a hop with 8 bytes. Each setting runs in processes of its "
      "own\n"
      "      --settings A,...  p2p, nop2p: NCCL_P2P_DISABLE=0 or 1; ll, ll128, simple: latency with that NCCL_PROTO "
      "(all)\n"
      "      Of the other flags it has -w -G -J -T -c -p -R --iters --device --alloc.\n\n"
      "Report\n"
      "  -a, --average M       time of a row over ranks: 0 rank 0's, 1 mean, 2 smallest, 3 largest (3)\n"
      "  -C, --report_cputime B  1: processor time of the calling thread instead of elapsed time\n"
      "  -S, --report_timestamps B  1: date and time on each row\n"
      "      --stats           what all ranks' networks did, at the end: messages, how full slots are, requests under "
      "way,\n"
      "                        the time of a message, and the plugin's counters\n"
      "  -J, --json FILE       write results and errors there as JSON (--output_file)\n"
      "  -T, --timeout S       end with an error when one size takes longer than S seconds; on GPUs also when "
      "operations\n"
      "                        do not end within S seconds (120)\n"
      "  NCCL_TESTS_MIN_BW=X   fail when the average bus bandwidth (GB/s) is below 0.9 X\n\n"
      "Differences from nccl-tests\n",
      out);
  fputs(o->nccl_tests_name
            ? "  Under this name -n is the number of iterations, as there. As tutti-perf, -n starts processes.\n"
            : "  -n starts processes; iterations are --iters. Under a *_perf name -n is iterations, as there.\n",
        out);
  fputs("  The time is the slowest rank's (-a 3); there the mean (-a 1).\n"
        "  alltoall and sendrecv have no in-place form: those columns say N/A and do not count in the average.\n"
        "  Counts of gathering and scattering collectives are not rounded to 16 bytes.\n"
        "  -D -V -M -I -K are refused.\n\n"
        "Exit status: 0 all correct; 1 wrong data or too little bandwidth; 2 wrong command line; 3 an error ended the "
        "run.\n",
        out);
}
