"""The quantities that are measured of an interception."""

from fedsim.quantity.quantity import Quantity

QUANTITIES = {
    one.name: one
    for one in (
        Quantity(
            "examples",
            "number of examples behind the update, those of all local steps and clients",
            "{} examples",
            "at most {} examples",
            "a smaller training.batch_size, or fewer local steps",
            free="a single example",
        ),
        Quantity(
            "clients",
            "number of clients whose updates are summed (secure aggregation)",
            "a sum over {} clients",
            "a sum over at most {} clients",
            "training.secure_aggregation = false",
            free="the update of a single client",
        ),
        Quantity(
            "steps",
            "number of local steps behind the update",
            "{} local steps",
            "at most {} local steps",
            "training.local_steps = 1",
            free="a single local step",
        ),
        Quantity(
            "optimizer",
            "optimizer of the local steps",
            "steps of {}",
            "steps of {}",
            'training.optimizer = "sgd"',
        ),
        Quantity(
            "movement",
            "norm of the weights' change, relative to that of the weights",
            "weights that moved by {} of their norm",
            "weights that move by at most {}",
            "a smaller training.lr, or fewer local steps",
            share=True,
        ),
        Quantity(
            "imbalance",
            "norm of the sum over classes of the head's gradient, relative to that of the gradient;"
            " under cross-entropy and SGD only noise and rounding make it differ from 0; not known "
            "of a sparse gradient",
            "a head's gradient perturbed by {} of its norm",
            "at most {} of perturbation at the head",
            "the run without its defense",
            share=True,
        ),
        Quantity(
            "noise",
            "norm that noise as strong as the head's imbalance has over all parameters, relative "
            "to that of the gradient",
            "noise of {} of the gradient's norm, as far as the head shows it",
            "at most {} of noise",
            "the run without its defense, or with less noise",
            share=True,
        ),
        Quantity(
            "row_noise",
            "what noise as strong as the head's imbalance adds to a row sum of the head's "
            "gradient, relative to the most negative one; not known where features have sums of "
            "both signs",
            "noise of {} of a row sum of the head's gradient",
            "at most {} of noise in the row sums of the head's gradient",
            "the run without its defense, or with less noise",
            share=True,
        ),
        Quantity(
            "absent",
            "share of the classes whose labels the update seems not to hold (1 - `label_share`) "
            "where the head's gradient has its largest rank, so that every class seems present; "
            "else 0",
            "{} of the classes absent, which the full rank at the head does not show",
            "at most {} of the classes absent where the head has full rank",
            "fewer labels in an update: a smaller batch, or fewer local steps",
            share=True,
        ),
        Quantity(
            "guessable",
            "share of the classes that as many random labels as examples hold on average",
            "so many examples that random labels hold {} of the classes",
            "so few examples that random labels hold at most {} of the classes",
            "a smaller batch, or a task with more classes",
            share=True,
        ),
        Quantity(
            "zeros",
            "share of zeros in the head's gradient, in rows and columns that are not zero "
            "throughout",
            "{} of the head's gradient set to zero",
            "at most {} of zeros",
            "the run without the defense that sends only some coordinates",
            share=True,
        ),
        Quantity(
            "coarseness",
            "share of the nonzero values of the head's gradient that occur more than once",
            "a head's gradient rounded to few values ({} of them repeat)",
            "at most {} of repeated values",
            "the run without the defense that rounds or takes signs",
            share=True,
        ),
        Quantity(
            "head_rank",
            "numerical rank of the head's gradient, at least the number of its labels",
            "a rank of {} at the head",
            "a rank of at most {} at the head",
            "a smaller batch",
        ),
        Quantity(
            "label_share",
            "share of the classes whose labels the update seems to hold: those of which the bias "
            "gradient shows half an example or more, given the model's mean probabilities for "
            "random inputs; without a bias the most that the examples and the rank allow",
            "labels of about {} of the classes in one update",
            "labels of at most {} of the classes in one update",
            "fewer labels in an update: a smaller batch, or fewer local steps",
            share=True,
        ),
        Quantity(
            "head_fill",
            "rank of the head's gradient, relative to the largest one, min(features, classes - 1); "
            "not known of a single example",
            "a head's gradient that fills {} of the dimensions that it has",
            "at most {} of the head's dimensions filled",
            "fewer labels in an update: a smaller batch, or fewer local steps",
            share=True,
        ),
        Quantity(
            "first_zeros",
            "share of zeros in the gradient of the first linear layer, in rows and columns that "
            "are not zero throughout",
            "{} of the first linear layer's gradient set to zero",
            "at most {} of zeros in the first linear layer",
            "the run without the defense that sends only some coordinates",
            share=True,
        ),
        Quantity(
            "first_fill",
            "rank of the gradient of the first linear layer, relative to its smaller side",
            "a first linear layer whose gradient fills {} of its dimensions",
            "at most {} of the first linear layer's dimensions filled",
            "fewer inputs in an update: a smaller batch, shorter texts, or fewer local steps",
            share=True,
        ),
        Quantity(
            "first_noise",
            "noise in the gradient of the first linear layer, if it takes the inputs: its largest "
            "singular value that the number of examples does not explain, relative to the smallest "
            "that it does",
            "noise of {} of an example's own part of the first linear layer's gradient",
            "at most {} of noise in the first linear layer",
            "the run without its defense, or with less noise",
            share=True,
        ),
        Quantity(
            "dead",
            "share of the units before the head whose gradient is zero: no example of the update "
            "reaches them",
            "{} of the hidden units without a gradient",
            "at most {} of dead units",
            "another activation than ReLU, or an earlier round",
            share=True,
        ),
        Quantity(
            "mixed_units",
            "share of the examples that lack two units of the first linear layer which may show "
            "them alone: units whose ratio of weight and bias gradient lies in the input range; if "
            "no range is known, units that share a ratio with others, unless it is three times "
            "larger than most. 0 of a single example",
            "{} of the examples without units of their own in the first linear layer",
            "at most {} of the examples without units of their own",
            "a single example, or a wider first layer with ReLU",
            share=True,
        ),
        Quantity(
            "missing_rank",
            "share of the tokens, which the word embeddings' gradient counts, that the rank of the "
            "first linear layer's gradient lacks",
            "a first linear layer whose gradient lacks {} of the tokens",
            "at most {} of the tokens missing in the rank of the first linear layer",
            "a model whose attention tells tokens apart, such as one with trained weights",
            share=True,
        ),
        Quantity(
            "word_noise",
            "median norm of the rows of the word embeddings' gradient, relative to the largest: 0 "
            "if fewer than half of the words are in the texts and nothing else fills the rows",
            "rows of absent words with {} of the largest row's norm",
            "rows of absent words with at most {} of the largest row's norm",
            "the run without its defense, or with less noise",
            share=True,
        ),
        Quantity(
            "missing_bias",
            "whether the head sends no gradient of a bias (1)",
            "a head without a bias",
            "a head with a bias",
            'a head with a bias, or of = "weight"',
            free="a head with a bias",
        ),
        Quantity(
            "unmarked",
            "share of the examples in excess of the classes with a negative gradient at the head "
            "(of the bias, without one the row sums): their labels repeat, or are outweighed",
            "{} of the examples without a negative class of their own",
            "at most {} of the examples without a negative class of their own",
            "a smaller batch, or an adversary that counts labels, such as llg",
            share=True,
        ),
        Quantity(
            "opposite_signs",
            "share of the head's bias gradient whose sign the weight's row sums do not have; they "
            "have it if the features of every example have a positive sum. Without a bias, under "
            "noise (`imbalance` above 10 %) and before training, the share of random inputs whose "
            "features have a negative sum",
            "{} of the row sums of the head's gradient with a turned sign",
            "at most {} of turned signs (features with a positive sum, alike in all steps)",
            "a single local step and a model with ReLU or sigmoid before its head, or rlg, which "
            "takes any features",
            share=True,
        ),
        Quantity(
            "signs_without_bias",
            "`opposite_signs` of a head that sends no gradient of a bias; 0 of one that does, "
            "which shows how often each label occurs, whatever the features",
            "a head without a bias and {} of its gradient's row sums with a turned sign",
            "a head with a bias, or at most {} of turned signs (features with a positive sum)",
            "a head with a bias, or a model with ReLU or sigmoid before its head",
            share=True,
        ),
        Quantity(
            "signed_labels",
            "`label_share` of a head whose inputs are positive and negative, which hide a label's "
            "row among those of other classes; 0 of a head whose inputs have one sign",
            "labels of up to {} of the classes at a head with features of both signs",
            "labels of at most {} of the classes where features have both signs",
            "a smaller batch, or rlg, which takes any features",
            share=True,
        ),
        Quantity(
            "batch_norm",
            "number of layers that normalise by the statistics of their batch",
            "{} layers with batch statistics",
            "at most {} layers with batch statistics",
            "GroupNorm, or BatchNorm in evaluation mode",
            free="no batch statistics",
        ),
        Quantity(
            "normalised_batches",
            "number of batches (local steps times clients) that were normalised by statistics of "
            "their own; 0 without such layers",
            "{} batches, each normalised by its own statistics",
            "at most {} batches with statistics of their own",
            "a single local step of a single client, or GroupNorm",
            free="a single batch where batches are normalised",
        ),
        Quantity(
            "max_pooling",
            "number of max-pooling layers, whose choice of a pixel no derivative shows",
            "{} layers with max-pooling",
            "at most {} layers with max-pooling",
            "strides in place of max-pooling",
            free="no max-pooling",
        ),
        Quantity(
            "kinked_values",
            "number of input values behind the update (examples times their size) if the model has "
            "activations without a second derivative, such as ReLU; else 0",
            "{} input values behind ReLU or the like",
            "at most {} input values behind ReLU or the like",
            "sigmoid in place of ReLU, or inverting-gradients",
        ),
        Quantity(
            "unknowns",
            "number of input values of all examples that the outputs of a layer do not tell, "
            "relative to the number of values of the gradient up to this layer that are not zero, "
            "at the layer where this is largest: above 1 the gradient alone does not determine the "
            "inputs. Counted are layers through which all of an input passes; of the features at "
            "the head those of as many examples as classes are known",
            "{} unknown input values for each value of the gradient",
            "at most {} unknown input values for each value of the gradient",
            "a smaller training.batch_size, or an attack with an image prior (inverting-gradients)",
            free="no more unknown input values than values of the gradient",
        ),
        Quantity(
            "determined",
            "largest number of examples of which `unknowns` is at most 1",
            "a gradient that determines {} examples at most",
            "a gradient that determines at most {} examples",
            "another model",
        ),
        Quantity(
            "dropout",
            "whether units are dropped at random in training (1) or not (0)",
            "units dropped at random",
            "a model without dropout",
            "dropout with p = 0",
            free="a model without dropout",
        ),
        Quantity(
            "repetition",
            "share of the examples whose label another example has, too (needs the truth)",
            "{} of the examples with a label that another has",
            "at most {} of repeated labels",
            "a smaller batch",
            share=True,
            truth=True,
        ),
        Quantity(
            "dead_relu",
            "share of ReLU outputs that are zero for all examples (needs the truth)",
            "{} of the ReLUs dead for all examples",
            "at most {} of dead ReLUs",
            "another activation than ReLU",
            share=True,
            truth=True,
        ),
    )
}
"""What is measured of an interception, by name, in the order of the columns."""
